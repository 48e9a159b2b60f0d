// SPDX-License-Identifier: Apache-2.0
#include "examples/embedding/clicks.h"

#include <algorithm>
#include <cmath>

namespace millrace {
namespace {

// Zipf's exponent: a few ids are very common, most are rare.
constexpr double kExponent = 1.05;

// A number in [-1, 1) that an id and a purpose decide (splitmix64).
double Taste(int64_t id, uint64_t purpose) {
  uint64_t x = static_cast<uint64_t>(id) + purpose * 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  x ^= x >> 31;
  return static_cast<double>(x >> 11) * 0x1.0p-52 - 1;
}

double ClickProbability(int64_t user, int64_t item) {
  const double match = Taste(user, 1) * Taste(item, 2) + Taste(user, 3) * Taste(item, 4);
  const double logit = 3 * match + 1.5 * Taste(user, 5) + 1.5 * Taste(item, 6) - 0.5;
  return 1 / (1 + std::exp(-logit));
}

}  // namespace

ClickStream::ClickStream(int64_t num_ids, uint64_t seed) : num_ids_(num_ids), random_(seed) {}

// The inverse of the continuous distribution with density x^-s on [1, n + 1), cut to whole numbers:
// close to Zipf's law, and one draw costs one power.
int64_t ClickStream::ZipfId() {
  const double u = std::uniform_real_distribution<double>(0, 1)(random_);
  const double e = 1 - kExponent;
  const double top = std::pow(static_cast<double>(num_ids_) + 1, e);
  const double x = std::pow(1 + u * (top - 1), 1 / e);
  return std::clamp<int64_t>(static_cast<int64_t>(x) - 1, 0, num_ids_ - 1);
}

StatusOr<ClickBatch> ClickStream::Next(int64_t count) {
  ClickBatch batch;
  MR_ASSIGN_OR_RETURN(const Shape ids, Shape::Make({count}));
  MR_ASSIGN_OR_RETURN(const Shape column, Shape::Make({count, 1}));
  MR_ASSIGN_OR_RETURN(batch.users, Tensor::Allocate(DT_INT64, ids));
  MR_ASSIGN_OR_RETURN(batch.items, Tensor::Allocate(DT_INT64, ids));
  MR_ASSIGN_OR_RETURN(batch.clicks, Tensor::Allocate(DT_FLOAT, column));
  for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
    const int64_t user = ZipfId();
    const int64_t item = ZipfId();
    batch.users.mutable_flat<int64_t>()[i] = user;
    batch.items.mutable_flat<int64_t>()[i] = item;
    const double draw = std::uniform_real_distribution<double>(0, 1)(random_);
    batch.clicks.mutable_flat<float>()[i] = draw < ClickProbability(user, item) ? 1.0f : 0.0f;
  }
  return batch;
}

}  // namespace millrace
