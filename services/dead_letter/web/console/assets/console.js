"use strict";
// Copies commands, and keeps a page that says data-refresh="SECONDS" as it is now. Without it every page works, too.
const say = text => { document.getElementById("announce").textContent = text; };

document.addEventListener("click", async event => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  try {
    await navigator.clipboard.writeText(button.dataset.copy);
    button.textContent = "Copied";
    say("Copied");
  } catch {
    getSelection().selectAllChildren(button.parentElement.querySelector("code"));
    button.textContent = "Selected";
    say("The command is selected: copy it with the keyboard");
  }
  setTimeout(() => { button.textContent = "Copy"; }, 2000);
});

const busy = main =>
  document.hidden || !getSelection().isCollapsed || (main !== document.activeElement && main.contains(document.activeElement));

async function refresh() {
  const main = document.getElementById("main");
  const seconds = Number(main.dataset.refresh);
  if (!seconds) return;
  if (!busy(main)) {
    try {
      const answer = await fetch(location.pathname + location.search, { cache: "no-store" });
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const news = page.getElementById("main");
      if (!busy(main) && news) {
        const before = main.querySelector("[data-announce]")?.textContent;
        const after = news.querySelector("[data-announce]")?.textContent;
        main.replaceChildren(...news.childNodes);
        if (news.dataset.refresh) main.dataset.refresh = news.dataset.refresh; else delete main.dataset.refresh;
        document.title = page.title;
        if (after && after !== before) say(after);
      }
    } catch {
      const told = "The console does not answer: what is shown may be old.";
      if (!document.getElementById("unanswered")) {
        const line = document.createElement("p");
        line.id = "unanswered";
        line.className = "notice bad";
        line.textContent = told;
        main.prepend(line);
        say(told);
      }
    }
  }
  setTimeout(refresh, seconds * 1000);
}

setTimeout(refresh, 1000 * Number(document.getElementById("main").dataset.refresh || 0) || 1000);
