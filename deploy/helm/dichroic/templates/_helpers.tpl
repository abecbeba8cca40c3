{{- define "dichroic.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "dichroic.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" }}
{{- else if contains (include "dichroic.name" .) .Release.Name }}
{{- .Release.Name | trunc 63 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "dichroic.name" .) | trunc 63 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "dichroic.selectorLabels" -}}
app.kubernetes.io/name: {{ include "dichroic.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "dichroic.labels" -}}
{{ include "dichroic.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "dichroic.image" -}}
{{- if .Values.image.digest }}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest }}
{{- else }}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) }}
{{- end }}
{{- end }}

{{- define "dichroic.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "dichroic.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{/* The Secret with the keys. A release without any key would only be restarted for ever. */}}
{{- define "dichroic.keysSecret" -}}
{{- if .Values.keys.existingSecret }}
{{- .Values.keys.existingSecret }}
{{- else if or .Values.keys.keysJson .Values.keys.apiKey }}
{{- printf "%s-keys" (include "dichroic.fullname" . | trunc 58 | trimSuffix "-") }}
{{- else }}
{{- fail "no API key: set keys.existingSecret (or keys.keysJson, or keys.apiKey); `dichroic keys create` makes a key file" }}
{{- end }}
{{- end }}

{{/* Pause, grace, and five seconds: the server takes up to three after its grace. */}}
{{- define "dichroic.terminationSeconds" -}}
{{- $grace := div (add (int64 .Values.config.shutdown_grace_ms) 999) 1000 }}
{{- add (int64 .Values.preStopSeconds) $grace 5 }}
{{- end }}

{{/* Not empty where Redis is asked over TLS. The image holds no certificates to check its own against. */}}
{{- define "dichroic.redisTls" -}}
{{- if hasPrefix "rediss://" .Values.redis.url }}
{{- if not .Values.redis.existingSecret }}
{{- fail "redis.url asks for TLS: set redis.existingSecret to a Secret with `ca.crt`" }}
{{- end }}
{{- "true" }}
{{- end }}
{{- end }}

{{- define "dichroic.redisPort" -}}
{{- regexReplaceAll `^rediss?://([^@/]*@)?(\[[^\]]*\]|[^:/]*)(:([0-9]+))?(/.*)?$` .Values.redis.url "${4}" | default "6379" }}
{{- end }}

{{/* Not empty where the autoscaler can look at processors: it needs a request, for which a limit alone stands too. */}}
{{- define "dichroic.scalesOnCpu" -}}
{{- $requests := default dict .Values.resources.requests }}
{{- $limits := default dict .Values.resources.limits }}
{{- if or $requests.cpu $limits.cpu }}
{{- "true" }}
{{- else if eq .Values.autoscaling.metric "cpu" }}
{{- fail "autoscaling.metric is cpu: set resources.requests.cpu, of which its target is a percentage" }}
{{- end }}
{{- end }}

{{/* Among how many a limit is shared out while Redis is away. */}}
{{- define "dichroic.mostReplicas" -}}
{{- if .Values.autoscaling.enabled }}
{{- .Values.autoscaling.maxReplicas | int64 }}
{{- else }}
{{- max 1 (.Values.replicas | int64) }}
{{- end }}
{{- end }}
