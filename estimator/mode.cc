// SPDX-License-Identifier: Apache-2.0
#include "estimator/mode.h"

namespace millrace {

absl::string_view ModeName(Mode mode) {
  switch (mode) {
    case Mode::kTrain:
      return "train";
    case Mode::kEval:
      return "eval";
    case Mode::kPredict:
      return "infer";
  }
  return "";
}

}  // namespace millrace
