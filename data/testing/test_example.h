// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DATA_TESTING_TEST_EXAMPLE_H_
#define MILLRACE_DATA_TESTING_TEST_EXAMPLE_H_

// TestExample: serialized tensorflow.Examples for tests, as protobuf writes them.
//
//   const std::string bytes = TestExample().Floats("x", {1, 2}).Bytes("s", {"a"});

#include <cstdint>
#include <string>
#include <vector>

#include "proto/example.pb.h"

namespace millrace {

inline void AddValues(const std::vector<float>& values, tensorflow::Feature* feature) {
  auto* list = feature->mutable_float_list();
  for (const float v : values) list->add_value(v);
}
inline void AddValues(const std::vector<int64_t>& values, tensorflow::Feature* feature) {
  auto* list = feature->mutable_int64_list();
  for (const int64_t v : values) list->add_value(v);
}
inline void AddValues(const std::vector<std::string>& values, tensorflow::Feature* feature) {
  auto* list = feature->mutable_bytes_list();
  for (const std::string& v : values) list->add_value(v);
}

class TestExample {
 public:
  TestExample& Floats(const std::string& key, const std::vector<float>& values) {
    AddValues(values, Of(key));
    return *this;
  }
  TestExample& Ints(const std::string& key, const std::vector<int64_t>& values) {
    AddValues(values, Of(key));
    return *this;
  }
  TestExample& Bytes(const std::string& key, const std::vector<std::string>& values) {
    AddValues(values, Of(key));
    return *this;
  }
  // An entry without a value.
  TestExample& Unset(const std::string& key) {
    Of(key);
    return *this;
  }
  operator std::string() const { return example_.SerializeAsString(); }  // NOLINT
  const tensorflow::Example& message() const { return example_; }

 private:
  tensorflow::Feature* Of(const std::string& key) {
    return &(*example_.mutable_features()->mutable_feature())[key];
  }
  tensorflow::Example example_;
};

}  // namespace millrace

#endif  // MILLRACE_DATA_TESTING_TEST_EXAMPLE_H_
