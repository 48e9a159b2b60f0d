# SPDX-License-Identifier: Apache-2.0
# What a shell program answers as the C++ ones do (core/program.h): --help with the comment at its
# beginning, --version, and wrong arguments with exit code 2 and a line on stderr.
#
#   source "$(dirname "$0")/program.sh"      # "$@" are the program's arguments
#   ...
#   *) wrong_arguments "unrecognized arguments: $1" ;;

program=$(basename "$0")

wrong_arguments() {
  echo "$program: error: $1; see --help" >&2
  exit 2
}

for word in "$@"; do
  case "$word" in
    -h | --help)
      sed -n '3,${/^#/!q;s/^# \{0,1\}//p}' "$0"
      exit 0
      ;;
    --version)
      sed -n "s/^#define MILLRACE_VERSION \"\(.*\)\"/$program (Millrace) \1/p" \
        "$(dirname "${BASH_SOURCE[0]}")/../core/version.h"
      exit 0
      ;;
    --) break ;;
  esac
done
unset word
