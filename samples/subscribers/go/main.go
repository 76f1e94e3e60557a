// Subscriber of Millrace's topic: it keeps the newest version of each row, and prints each change as a line of JSON.
//
// Usage: subscriber projects/PROJECT/subscriptions/SUBSCRIPTION
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"

	"cloud.google.com/go/pubsub/v2"
)

const newestFormat = 2

// A batch is what a message holds. What stands at one place of each list is one change.
type batch struct {
	Header   struct{ Table string }
	Op       []string
	Keys     []map[string]any
	Rows     []map[string]any // nil for a delete
	Sequence []string
}

// A version is what is known of a row.
type version struct {
	sequence string
	row      map[string]any
}

// Rows has the newest version of each row. A deleted row stays here, so that an older upsert does not bring it back.
type rows struct {
	sync.Mutex // the client calls receive in several goroutines
	newest     map[string]version
	printed    *json.Encoder
}

// A line is a change as it is printed.
type line struct {
	Table  string         `json:"table"`
	Op     string         `json:"op"`
	Key    map[string]any `json:"key"`
	Row    map[string]any `json:"row"`
	Newest bool           `json:"newest"`
}

// decode returns the change batch in a message. It is an error if there is none, or its format is newer.
func decode(message *pubsub.Message) (*batch, error) {
	format, err := strconv.Atoi(message.Attributes["format"])
	if err != nil {
		return nil, errors.New("no change batch: it has no attribute format")
	}
	if format > newestFormat {
		return nil, fmt.Errorf("wire format %d, this subscriber reads up to %d: upgrade it", format, newestFormat)
	}
	decoded := &batch{}
	decoder := json.NewDecoder(bytes.NewReader(message.Data))
	decoder.UseNumber() // no digit is lost
	err = decoder.Decode(decoded)
	count := len(decoded.Sequence)
	if err != nil || decoder.More() || decoded.Header.Table == "" || len(decoded.Op) != count || len(decoded.Keys) != count || len(decoded.Rows) != count {
		return nil, errors.New("no change batch: its data does not read as one")
	}
	for at, op := range decoded.Op {
		if (op == "DELETE") != (decoded.Rows[at] == nil) {
			return nil, errors.New("no change batch: an upsert has a row, a delete has none")
		}
	}
	return decoded, nil
}

// apply keeps each change that is newer than the known version of its row. A greater sequence is newer.
func (r *rows) apply(b *batch) error {
	r.Lock()
	defer r.Unlock()
	for at, key := range b.Keys {
		id, err := json.Marshal([]any{b.Header.Table, key}) // sorts the names of the key's columns
		if err != nil {
			return err
		}
		known, found := r.newest[string(id)]
		isNewest := !found || known.sequence < b.Sequence[at]
		if isNewest {
			r.newest[string(id)] = version{b.Sequence[at], b.Rows[at]}
		}
		if err := r.printed.Encode(line{b.Header.Table, b.Op[at], key, b.Rows[at], isNewest}); err != nil {
			return err
		}
	}
	return nil
}

func (r *rows) receive(_ context.Context, message *pubsub.Message) {
	decoded, err := decode(message)
	if err != nil {
		fmt.Fprintf(os.Stderr, "message %s refused: %v\n", message.ID, err)
		message.Nack()
		return
	}
	if err := r.apply(decoded); err != nil {
		log.Fatal(err)
	}
	message.Ack()
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	name := os.Args[1]
	client, err := pubsub.NewClient(context.Background(), strings.Split(name, "/")[1])
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	kept := &rows{newest: map[string]version{}, printed: json.NewEncoder(os.Stdout)}
	if err := client.Subscriber(name).Receive(ctx, kept.receive); err != nil {
		log.Fatal(err)
	}
}
