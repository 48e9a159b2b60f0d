// SPDX-License-Identifier: Apache-2.0
#include "train/loss_guard.h"

#include <cmath>
#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace millrace {
namespace {

// Marks the guard's errors.
constexpr char kLossNotFinite[] = "loss_not_finite";

}  // namespace

Status CheckLossIsFinite(const Tensor& loss, int64_t step, const Staleness& staleness) {
  double bad = 0;  // the first element that is not finite
  const auto scan = [&bad](const auto values) {
    for (const auto v : values) {
      if (std::isfinite(v)) continue;
      bad = static_cast<double>(v);
      return;
    }
  };
  switch (loss.dtype()) {
    case DT_FLOAT:
      scan(loss.flat<float>());
      break;
    case DT_DOUBLE:
      scan(loss.flat<double>());
      break;
    default:
      return InvalidArgument("NaN guard: the loss must be float or double, got ",
                             DTypeName(loss.dtype()));
  }
  if (std::isfinite(bad)) return absl::OkStatus();
  const std::string hint =
      staleness.max <= 0
          ? std::string("lower the learning rate or look for bad input")
          : absl::StrFormat(
                "this task's gradients were stale by %.1f updates of other tasks on "
                "average, %d at most: lower the learning rate, to about 1/%.0f of what "
                "one task alone stands, or train with fewer workers; or look for bad "
                "input",
                staleness.mean, staleness.max, 1 + staleness.mean);
  Status status = InvalidArgument("NaN guard: the loss must be finite, got ",
                                  std::isnan(bad) ? "nan" : (bad > 0 ? "inf" : "-inf"),
                                  " at global step ", step, "; ", hint);
  status.SetPayload(kLossNotFinite, absl::Cord());
  return status;
}

bool IsLossNotFinite(const Status& status) { return status.GetPayload(kLossNotFinite).has_value(); }

}  // namespace millrace
