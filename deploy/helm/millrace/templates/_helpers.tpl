{{- define "millrace.labels" -}}
app.kubernetes.io/name: millrace
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "millrace.name" -}}
{{ printf "%s-%s" .root.Release.Name .component | replace "_" "-" | trunc 46 | trimSuffix "-" }}
{{- end }}

{{- define "millrace.image" -}}
{{- $given := .root.Values.image -}}
{{ $given.registry }}/{{ .image }}:{{ $given.tag | default .root.Chart.AppVersion }}{{ with index $given.digests .image }}@{{ . }}{{ end }}
{{- end }}

{{- define "millrace.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "millrace.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* Liveness is /healthz alone: a restart does not help while a service of Google's is unavailable. */}}
{{- define "millrace.probes" -}}
startupProbe:
  httpGet: {path: /healthz, port: health}
  periodSeconds: 5
  failureThreshold: 60
livenessProbe:
  httpGet: {path: /healthz, port: health}
  periodSeconds: 10
  timeoutSeconds: 5
readinessProbe:
  httpGet: {path: /readyz, port: health}
  periodSeconds: 10
  timeoutSeconds: 5
{{- end }}

{{- define "millrace.settings" -}}
{{- range $name, $value := .settings }}
- {name: {{ $name }}, value: {{ $value | toString | quote }}}
{{- end }}
{{- if .root.Values.tablesFile }}
- {name: TABLES_FILE, value: /etc/millrace/tables.toml}
{{- end }}
{{- end }}

{{- define "millrace.podMetadata" -}}
labels:
  {{- include "millrace.labels" . | nindent 2 }}
annotations:
  prometheus.io/scrape: "true"
  prometheus.io/port: "8080"
  checksum/tables: {{ .root.Values.tablesFile | sha256sum }}
{{- end }}

{{- define "millrace.volumes" -}}
- {name: tmp, emptyDir: {}}
{{- if .root.Values.tablesFile }}
- {name: tables, configMap: {name: {{ .root.Release.Name }}-tables}}
{{- end }}
{{- end }}

{{- define "millrace.mounts" -}}
- {name: tmp, mountPath: /tmp}
{{- if .root.Values.tablesFile }}
- {name: tables, mountPath: /etc/millrace/tables.toml, subPath: tables.toml, readOnly: true}
{{- end }}
{{- end }}

{{/* The readers, each with its kind, as JSON. */}}
{{- define "millrace.readers" -}}
{{- $readers := list }}
{{- range $name, $reader := .Values.spannerReaders }}
{{- $readers = append $readers (dict "name" $name "kind" "spanner_reader" "reader" $reader) }}
{{- end }}
{{- range $name, $reader := .Values.bigtableReaders }}
{{- $readers = append $readers (dict "name" $name "kind" "bigtable_reader" "reader" $reader) }}
{{- end }}
{{- toJson $readers }}
{{- end }}

{{/* The key of masks by sha256, which the consumer reads and its executors too. */}}
{{- define "millrace.maskMount" -}}
{{- if .Values.consumer.maskKeySecret }}
- {name: mask, mountPath: /etc/millrace/mask, readOnly: true}
{{- end }}
{{- end }}

{{- define "millrace.maskVolume" -}}
{{- if .Values.consumer.maskKeySecret }}
- {name: mask, secret: {secretName: {{ .Values.consumer.maskKeySecret }}, defaultMode: 0440}}
{{- end }}
{{- end }}
