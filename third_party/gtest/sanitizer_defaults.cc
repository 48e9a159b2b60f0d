// SPDX-License-Identifier: Apache-2.0
// Read by the sanitizer runtimes at start; unused in other builds.
//
// No suppressions: what runs under TSan synchronises by core/mutex.h and the
// std::thread arena, which are instrumented. Tests that drive gRPC or oneTBB,
// which are not, carry the tag "notsan".
extern "C" {

// Debian's libraries are not instrumented: what happens inside them is not looked at.
const char* __tsan_default_options() { return "ignore_noninstrumented_modules=1"; }

const char* __asan_default_options() {
  return "detect_stack_use_after_return=1:strict_string_checks=1";
}

const char* __ubsan_default_options() { return "print_stacktrace=1"; }

}  // extern "C"
