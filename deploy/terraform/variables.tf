variable "project" {
  description = "The Google Cloud project of everything that the module makes."
  type        = string
}

variable "location" {
  description = "Where the dataset, the images and the reservation are, such as europe-west1."
  type        = string
}

variable "name" {
  description = "What all names begin with. A second pipeline in a project needs another one."
  type        = string
  default     = "millrace"

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,9}[a-z0-9]$", var.name))
    error_message = "3 to 11 lower case letters, digits and hyphens, a letter first, no hyphen last: the names of service accounts are short."
  }
}

variable "dataset" {
  description = "The id of the BigQuery dataset of the mirrors."
  type        = string
  default     = "mirror"
}

variable "spanner" {
  description = "The watched Spanner database; null for none. data_boost: snapshots are read by Data Boost."
  type = object({
    instance   = string
    database   = string
    dialect    = optional(string, "GOOGLE_STANDARD_SQL")
    data_boost = optional(bool, false)
  })
  default = null
}

variable "bigtable" {
  description = "The watched Bigtable table, and the cluster that its change stream is read from; null for none."
  type = object({
    instance = string
    table    = string
    cluster  = string
  })
  default = null
}

variable "reservation_slots" {
  description = "BigQuery slots of a reservation for applying changes in the background; 0 for on-demand prices."
  type        = number
  default     = 0
}

variable "kubernetes_namespace" {
  description = "The namespace whose service accounts act as the module's (Workload Identity); null for none."
  type        = string
  default     = "millrace"
}

variable "deletion_protection" {
  description = "Whether Terraform refuses to destroy the partition database, the partition table and the dataset's tables."
  type        = bool
  default     = true
}
