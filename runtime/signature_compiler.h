// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_RUNTIME_SIGNATURE_COMPILER_H_
#define MILLRACE_RUNTIME_SIGNATURE_COMPILER_H_

// SignatureCompiler: a session's graph, and the way from the names of a Run (feeds, fetches,
// targets) to executors: prune, place, rewrite, partition, plan.
//
// Invariants:
//   * the graph only grows, so what was compiled stays right;
//   * a signature is compiled once while anybody keeps it, whatever the order of its names;
//   * stateful nodes keep their kernel and their device from one signature to the next.
//
// Thread-safety: all methods, from any thread; compiling is serial.
// Lifetime: what Bind returns uses the devices and outlives the compiler only as far as they do.
// Failure: InvalidArgument and NotFound name the node or tensor; nothing changes then.

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "core/mutex.h"
#include "core/status.h"
#include "graph/graph.h"
#include "graph/partition.h"
#include "graph/placer.h"
#include "graph/prune.h"
#include "proto/config.pb.h"
#include "runtime/constant_evaluator.h"
#include "runtime/executor.h"
#include "runtime/plan.h"

namespace millrace {

// A signature that has been compiled, in the order of its sorted names. Immutable but for counters.
struct CompiledSignature {
  RunSignature signature;
  std::vector<DType> feed_types;
  std::vector<PartialShape> feed_shapes;
  struct Part {
    Device* device;
    std::unique_ptr<Executor> executor;
  };
  std::vector<Part> parts;
  bool has_transfers = false;
};

// What a caller's lists mean: where each of its tensors is in a
// CompiledSignature.
struct SignatureBinding {
  std::shared_ptr<const CompiledSignature> compiled;  // null when there is nothing to run
  size_t num_feeds = 0;
  std::vector<size_t> feed_to;  // caller's feed -> feed of compiled
  struct Source {
    bool fed;      // else fetched
    size_t index;  // caller's feed, or fetch of compiled
  };
  std::vector<Source> results;            // one per tensor that is returned
  std::vector<std::string> result_names;  // for messages
  std::vector<std::string> feed_names;
};

class SignatureCompiler {
 public:
  // `devices` (the first is the default one) outlive the compiler. `max_kept`: how many signatures
  // the caller keeps; more entries of others are cleaned up now and then.
  SignatureCompiler(absl::Span<const std::unique_ptr<Device>> devices,
                    const tensorflow::ConfigProto& config, size_t max_kept);

  // Adds nodes. A name that exists must come with an equal definition.
  Status Extend(const tensorflow::GraphDef& def);
  StatusOr<std::shared_ptr<const SignatureBinding>> Bind(absl::Span<const std::string> feeds,
                                                         absl::Span<const std::string> fetches,
                                                         absl::Span<const std::string> targets);
  // The graphs that the devices run for a compiled signature.
  StatusOr<GraphPartitions> Partitions(const RunSignature& signature);
  int64_t compilations() const { return compilations_.load(std::memory_order_relaxed); }

 private:
  StatusOr<std::shared_ptr<const CompiledSignature>> FindOrCompile(RunSignature signature)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  StatusOr<GraphPartitions> MakePartitions(const RunSignature& signature,
                                           RewrittenSignature* rewritten)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  PartialShape FeedShape(const std::string& name) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const absl::Span<const std::unique_ptr<Device>> devices_;
  std::vector<DeviceInfo> device_infos_;
  const bool allow_soft_placement_, log_device_placement_;
  const size_t max_kept_;
  const tensorflow::GraphOptions graph_options_;
  const KernelRegistrySupport kernel_support_;
  KernelEvaluator evaluator_;
  KernelStore kernels_;
  std::atomic<int64_t> compilations_{0};  // relaxed: counts only

  Mutex mu_;
  Graph graph_ ABSL_GUARDED_BY(mu_);
  StatefulPlacements placements_ ABSL_GUARDED_BY(mu_);
  bool warned_of_missing_gpu_ ABSL_GUARDED_BY(mu_) = false;
  absl::flat_hash_map<std::string, std::weak_ptr<const CompiledSignature>> compiled_
      ABSL_GUARDED_BY(mu_);
};

}  // namespace millrace

#endif  // MILLRACE_RUNTIME_SIGNATURE_COMPILER_H_
