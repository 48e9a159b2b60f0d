// SPDX-License-Identifier: Apache-2.0
//
// Exports the model of served_models.h for tests that are no C++.
//
//   export_scaling DIRECTORY SCALE [BALLAST_MB [frozen]]
//
// BALLAST_MB: megabytes of another variable; frozen: of a constant in the graph's file.

#include <cstdint>
#include <iostream>
#include <string>

#include "absl/strings/numbers.h"
#include "core/exit_code.h"
#include "core/status.h"
#include "tests/serving/served_models.h"

int main(int argc, char** argv) {
  float scale = 0;
  int64_t megabytes = 0;
  const bool is_frozen = argc == 5 && std::string(argv[4]) == "frozen";
  if (argc < 3 || argc > 5 || !absl::SimpleAtof(argv[2], &scale) ||
      (argc > 3 && (!absl::SimpleAtoi(argv[3], &megabytes) || megabytes < 0)) ||
      (argc == 5 && !is_frozen)) {
    std::cerr << "export_scaling: must be given DIRECTORY SCALE [BALLAST_MB [frozen]]\n";
    return millrace::kExitError;
  }
  return millrace::ReportedExitCode(
      "export_scaling", millrace::ExportScaling(argv[1], {.scale = scale,
                                                          .ballast = megabytes * (1'000'000 / 4),
                                                          .is_frozen = is_frozen}));
}
