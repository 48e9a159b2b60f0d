// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_ESTIMATOR_PARAMS_H_
#define MILLRACE_ESTIMATOR_PARAMS_H_

// Params: hyperparameters by name, for model and input functions that are given them. Functions
// that capture what they need want none.
//
//   Params params = {{"learning_rate", 0.01}, {"layers", 3}, {"optimizer", "Adam"}};
//   params.Get("learning_rate", 0.1)
//
// Values; thread-compatible.

#include <cstdint>
#include <initializer_list>
#include <map>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>

#include "absl/strings/string_view.h"

namespace millrace {

class Param {
 public:
  template <typename T>
    requires std::is_arithmetic_v<T>
  Param(T value) {  // NOLINT
    if constexpr (std::is_same_v<T, bool>) {
      value_ = value;
    } else if constexpr (std::is_integral_v<T>) {
      value_ = static_cast<int64_t>(value);
    } else {
      value_ = static_cast<double>(value);
    }
  }
  Param(std::string value) : value_(std::move(value)) {}          // NOLINT
  Param(absl::string_view value) : value_(std::string(value)) {}  // NOLINT
  Param(const char* value) : value_(std::string(value)) {}        // NOLINT

  const std::variant<bool, int64_t, double, std::string>& value() const { return value_; }

 private:
  std::variant<bool, int64_t, double, std::string> value_;
};

class Params {
 public:
  Params() = default;
  Params(std::initializer_list<std::pair<const std::string, Param>> values) : values_(values) {}
  Params(std::map<std::string, Param> values) : values_(std::move(values)) {}  // NOLINT

  bool empty() const { return values_.empty(); }
  bool has(absl::string_view name) const { return values_.count(std::string(name)) > 0; }
  const std::map<std::string, Param>& map() const { return values_; }

  // The value, of the type of `otherwise`, which is returned when there is none of that name, or
  // one that is no such value. Integers are numbers, too.
  bool Get(absl::string_view name, bool otherwise) const { return GetAs(name, otherwise); }
  int64_t Get(absl::string_view name, int64_t otherwise) const { return GetAs(name, otherwise); }
  int64_t Get(absl::string_view name, int otherwise) const {
    return GetAs(name, int64_t{otherwise});
  }
  double Get(absl::string_view name, double otherwise) const {
    const auto found = values_.find(std::string(name));
    if (found != values_.end()) {
      if (const auto* whole = std::get_if<int64_t>(&found->second.value())) {
        return static_cast<double>(*whole);
      }
    }
    return GetAs(name, otherwise);
  }
  std::string Get(absl::string_view name, const std::string& otherwise) const {
    return GetAs(name, otherwise);
  }
  std::string Get(absl::string_view name, const char* otherwise) const {
    return GetAs(name, std::string(otherwise));
  }

 private:
  template <typename T>
  T GetAs(absl::string_view name, T otherwise) const {
    const auto found = values_.find(std::string(name));
    if (found == values_.end()) return otherwise;
    const T* const value = std::get_if<T>(&found->second.value());
    return value == nullptr ? otherwise : *value;
  }

  std::map<std::string, Param> values_;
};

}  // namespace millrace

#endif  // MILLRACE_ESTIMATOR_PARAMS_H_
