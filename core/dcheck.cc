// SPDX-License-Identifier: Apache-2.0
#include "core/dcheck.h"

#include <cstdio>
#include <cstdlib>

namespace millrace::dcheck_internal {
namespace {

bool FromEnvironment() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return true;
#else
  const char* const text = std::getenv("MILLRACE_DCHECK");
  return text != nullptr && text[0] != '\0' && text[0] != '0';
#endif
}

}  // namespace

// Objects that are initialised before this one see false: their checks are off.
bool are_on = FromEnvironment();

void Fail(const char* condition, const char* sentence, const char* file, int line) {
  std::fprintf(stderr, "%s:%d: MR_DCHECK: %s; '%s' does not hold\n", file, line, sentence,
               condition);
  std::fflush(stderr);
  std::abort();
}

}  // namespace millrace::dcheck_internal
