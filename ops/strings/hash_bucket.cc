// SPDX-License-Identifier: Apache-2.0
#include "ops/strings/hash_bucket.h"

#include <string>

#include "core/fingerprint64.h"
#include "core/hash64.h"
#include "ops/strings/each_string.h"
#include "ops/strings/sip_hash.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

// A short string costs about this much.
constexpr double kHashNs = 12;

// hash(text), unsigned.
template <typename Hash>
Status HashToBuckets(KernelContext* ctx, int64_t num_buckets, Hash hash) {
  const uint64_t buckets = static_cast<uint64_t>(num_buckets);
  return EachString<int64_t>(ctx, kHashNs, [&](const std::string& text, int64_t* out) {
    *out = static_cast<int64_t>(hash(text) % buckets);
  });
}

struct HashBucketRule : UnchangedShapeRule {
  int64_t num_buckets = 1;

  Status Init(const NodeAttrs& attrs) { return ReadAttrs(attrs, "num_buckets", &num_buckets); }
};

Status RunFast(KernelContext* ctx, const HashBucketRule& rule) {
  return HashToBuckets(ctx, rule.num_buckets, Fingerprint64);
}

Status RunLegacy(KernelContext* ctx, const HashBucketRule& rule) {
  return HashToBuckets(ctx, rule.num_buckets, [](absl::string_view text) { return Hash64(text); });
}

const OpRegistration kStringToHashBucketFast =
    OpSpec("StringToHashBucketFast", "input: string -> output: int64", "num_buckets: int >= 1")
        .With(RuledKernelFor<HashBucketRule>(RunFast))
        .NotDifferentiable();

const OpRegistration kStringToHashBucket =
    OpSpec("StringToHashBucket", "string_tensor: string -> output: int64", "num_buckets: int >= 1")
        .With(RuledKernelFor<HashBucketRule>(RunLegacy))
        .NotDifferentiable();

// --- Keyed ---------------------------------------------------------------------------------------

struct StrongRule : UnchangedShapeRule {
  int64_t num_buckets = 1;
  std::vector<int64_t> key;

  Status Init(const NodeAttrs& attrs) {
    MR_RETURN_IF_ERROR(ReadAttrs(attrs, "num_buckets", &num_buckets, "key", &key));
    if (key.size() == 2) return absl::OkStatus();
    return InvalidArgument("Key must have 2 elements, got ", key.size());
  }
};

Status RunStrong(KernelContext* ctx, const StrongRule& rule) {
  const SipKey key = {static_cast<uint64_t>(rule.key[0]), static_cast<uint64_t>(rule.key[1])};
  return HashToBuckets(ctx, rule.num_buckets,
                       [key](absl::string_view text) { return SipHash24(key, text); });
}

const OpRegistration kStringToHashBucketStrong =
    OpSpec("StringToHashBucketStrong", "input: string -> output: int64",
           "num_buckets: int >= 1; key: list(int)")
        .With(RuledKernelFor<StrongRule>(RunStrong))
        .NotDifferentiable();

}  // namespace
}  // namespace millrace
