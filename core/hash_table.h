// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_CORE_HASH_TABLE_H_
#define MILLRACE_CORE_HASH_TABLE_H_

// HashMap, HashSet: the hash tables of everything that a step or its compilation fills: an
// allocation that fails leaves them as they were. (Abseil's tables are not used there: they set
// their capacity before they allocate, and free what they do not own after a std::bad_alloc.)
//
// The standard library's tables with Abseil's hash; those with std::string keys are asked with any
// string without a copy.

#include <functional>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "absl/hash/hash.h"
#include "absl/strings/string_view.h"

namespace millrace {

namespace hash_table_internal {

template <typename Key>
struct Traits {
  using Hash = absl::Hash<Key>;
  using Equal = std::equal_to<Key>;
};

template <>
struct Traits<std::string> {
  struct Hash {
    using is_transparent = void;
    size_t operator()(absl::string_view s) const { return absl::Hash<absl::string_view>()(s); }
  };
  struct Equal {
    using is_transparent = void;
    bool operator()(absl::string_view a, absl::string_view b) const { return a == b; }
  };
};

}  // namespace hash_table_internal

template <typename Key, typename Value>
using HashMap = std::unordered_map<Key, Value, typename hash_table_internal::Traits<Key>::Hash,
                                   typename hash_table_internal::Traits<Key>::Equal>;

template <typename Key>
using HashSet = std::unordered_set<Key, typename hash_table_internal::Traits<Key>::Hash,
                                   typename hash_table_internal::Traits<Key>::Equal>;

}  // namespace millrace

#endif  // MILLRACE_CORE_HASH_TABLE_H_
