#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A program that is compiled as an older C++ gets one error, which says what to do.
#
# covers: outside: a program that is not compiled as C++20 gets one error, which names the option
#
# Usage: cxx_standard_test.sh MILLRACE_H
set -euo pipefail

for standard in c++14 c++17; do
  if said=$("${CXX:-g++}" "-std=$standard" -fsyntax-only -x c++ "$1" 2>&1); then
    echo "$standard: must be refused, got no error"
    exit 1
  fi
  errors=$(grep -c ' error: ' <<< "$said")
  if [[ $errors -ne 1 ]] || ! grep -qF 'needs C++20: compile with -std=c++20' <<< "$said"; then
    echo "$standard: must get one error that names -std=c++20, got $errors:"
    echo "$said"
    exit 1
  fi
done
