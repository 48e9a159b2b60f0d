// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_STRINGS_HASH_BUCKET_H_
#define MILLRACE_OPS_STRINGS_HASH_BUCKET_H_

// Strings as numbers of buckets: each string, wherever and whenever it is seen, the same.
//
// All take a string tensor of any shape and give an int64 tensor of that shape, with values in
// [0, num_buckets). The values are TensorFlow's, so that tables trained there still fit.

#include <cstdint>
#include <vector>

#include "graph/node_builder.h"

namespace millrace {

// By FarmHash's fingerprint (core/fingerprint64.h): what columns of hashed categories use.
inline Output StringToHashBucketFast(ScopeAt at, Output input, int64_t num_buckets) {
  return BuildOp(at, "StringToHashBucketFast", {input}, "num_buckets", num_buckets);
}

// By SipHash-2-4 with a key of two numbers: nobody who does not know it can choose strings that
// share a bucket. InvalidArgument for a key of another length.
inline Output StringToHashBucketStrong(ScopeAt at, Output input, int64_t num_buckets,
                                       const std::vector<int64_t>& key) {
  return BuildOp(at, "StringToHashBucketStrong", {input}, "num_buckets", num_buckets, "key", key);
}

// By the hash of old graphs (core/hash64.h).
inline Output StringToHashBucket(ScopeAt at, Output string_tensor, int64_t num_buckets) {
  return BuildOp(at, "StringToHashBucket", {string_tensor}, "num_buckets", num_buckets);
}

}  // namespace millrace

#endif  // MILLRACE_OPS_STRINGS_HASH_BUCKET_H_
