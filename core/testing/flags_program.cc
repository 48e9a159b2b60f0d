// SPDX-License-Identifier: Apache-2.0
//
// flags_program: prints its flags and its directory, for tests of core/program_flags.h.

#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/flags/flag.h"
#include "absl/flags/usage.h"
#include "core/program_flags.h"

ABSL_FLAG(int64_t, max_steps, 1000, "steps of all workers together");
ABSL_FLAG(double, rate, 0.5, "of gradient descent");
ABSL_FLAG(std::string, log_dir, "", "directory of checkpoints; empty: none");
ABSL_FLAG(bool, fast, false, "does less");

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("Prints its flags.");
  millrace::ParseProgramFlags(argc, argv);
  char* const directory = getcwd(nullptr, 0);
  std::printf("max_steps=%lld rate=%g log_dir=%s fast=%d in %s\n",
              static_cast<long long>(absl::GetFlag(FLAGS_max_steps)), absl::GetFlag(FLAGS_rate),
              absl::GetFlag(FLAGS_log_dir).c_str(), absl::GetFlag(FLAGS_fast) ? 1 : 0, directory);
  std::free(directory);
  return 0;
}
