#!/usr/bin/env bash
# Asks all four operations of a Dichroic server with curl.
#
#     DICHROIC_URL=http://127.0.0.1:8080 DICHROIC_KEY=dk_… examples/curl.sh [model]
#
# Key and bodies reach curl through files and pipes: what stands on a command line, everybody on the machine can see.
set -euo pipefail

url=${DICHROIC_URL:-http://127.0.0.1:8080}
key=${DICHROIC_KEY:?set DICHROIC_KEY to an API key}
model=${1:-alpha-4o-mini}
headers=$(mktemp)
trap 'rm -f "$headers"' EXIT

# ask PATH: sends the JSON body on standard input, prints the answer. Waits and asks again when the server says so.
ask() {
  local path=$1 body answer status seconds
  body=$(cat)
  for _ in 1 2 3 4 5; do
    answer=$(curl --silent --show-error --max-time 60 --dump-header "$headers" --write-out '\n%{http_code}' \
      --header 'Content-Type: application/json' --header @<(printf 'Authorization: Bearer %s\n' "$key") \
      --data-binary @- "$url$path" <<<"$body")
    status=${answer##*$'\n'}
    answer=${answer%$'\n'*}
    [[ $status == 429 ]] || break
    seconds=$(tr -d '\r' <"$headers" | awk 'tolower($1) == "retry-after:" { print $2 }')
    sleep "${seconds:-1}"
  done
  if [[ $status != 200 ]]; then
    echo "$path: $status $answer" >&2
    exit 1
  fi
  echo "$path $answer"
}

# Texts of others belong into JSON by way of a tool that quotes them: jq --null-input --arg text "$text" '{$text}'
ask /v1/prisms/text <<END
{"text": "My train is half an hour late again.", "model": "$model"}
END
ask /v1/sunshines/text <<END
{"text": "I have an exam tomorrow and I am nervous.", "model": "$model"}
END
ask /v1/guardians/text <<END
{"text": "I will find you and hurt you.", "score_threshold": 0.5, "model": "$model"}
END

# A picture of eight by eight pixels. Of a file: base64 <picture.png | tr -d '\n'
image=iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAIAAABLbSncAAAAdklEQVR42g3JoQEEIQwAsB+HIRiCIRgi+nQ1uhpdjWasJza/5janqWY32awmmu/X3e501e0uu9VFfzHc4Qw17CGHNcR4Md3pTDXtKac1xXzB5VBskkV4EW44ocIOGVaIeJFuOqnSTplWinxRbjmlyi5ZVony/QEfRGLB4iT3qwAAAABJRU5ErkJggg==
ask /v1/guardians/image <<END
{"image": "$image", "model": "$model"}
END
