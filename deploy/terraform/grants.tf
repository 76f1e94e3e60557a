# Which services there are, and which roles each gets, from roles.yaml. Nothing here needs a provider, so a test evaluates it.

locals {
  services = toset(concat(
    ["cdc_consumer", "dead_letter"],
    var.spanner == null ? [] : ["spanner_reader"],
    var.bigtable == null ? [] : ["bigtable_reader"],
  ))

  boosted = var.spanner == null ? false : var.spanner.data_boost

  grants = merge([
    for line in yamldecode(file("${path.module}/roles.yaml")) : merge([
      for identity in try(line.identities, []) : merge([
        for role in line.roles : {
          for resource in try(line.resources, []) : "${identity} ${role} ${resource}" => {
            identity = identity
            resource = resource
            role     = local.boosted && role == "roles/spanner.databaseReader" ? "roles/spanner.databaseReaderWithDataBoost" : role
          }
        }
      ]...)
      if identity == "pubsub_agent" || contains(local.services, identity)
    ]...)
  ]...)
}
