// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_RUNTIME_SESSION_FUNCTION_RUNTIME_H_
#define MILLRACE_RUNTIME_SESSION_FUNCTION_RUNTIME_H_

// FunctionRuntime: the functions that the kernels of a session's graphs call, on the devices of one
// task.
//
//   Find, when the kernel is built -> first Run: compiled, as any graph -> further Runs
//
// A function without state is compiled once for its attrs and device, for every caller; one with
// state once for each place that it is called from. A run is a step of its own within the step of
// the caller: in the calling thread as far as nothing has to be waited for, on recycled state, with
// the caller's cancellation, deadline, memory, resources and traces.
//
// Thread-safety: all methods, from any thread; compiling takes turns.
// Lifetime: shared by the session and by who shares a function of it; keeps the devices. What is
// among their resources and shares a function (an iterator) keeps itself alive so: sessions abandon
// the resources of their devices when they end.
// Failure: see runtime/function_runner.h. An error of compiling is not kept: the next Run tries
// again.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "core/hash_table.h"
#include "core/mutex.h"
#include "core/status.h"
#include "graph/place/placer.h"
#include "proto/config.pb.h"
#include "runtime/device.h"
#include "runtime/function_runner.h"
#include "runtime/plan.h"

namespace millrace {

// Most functions (by attrs, device and place of the call) that one runtime knows.
inline constexpr size_t kMaxCalledFunctions = 100'000;

class FunctionRuntime final : public FunctionRunner,
                              public std::enable_shared_from_this<FunctionRuntime> {
 public:
  // `kernels` keeps stateful kernels, those of the session's own graphs among them.
  static std::shared_ptr<FunctionRuntime> Make(const tensorflow::ConfigProto& config,
                                               std::vector<std::shared_ptr<Device>> devices,
                                               std::shared_ptr<KernelStore> kernels);
  ~FunctionRuntime() override;

  StatusOr<CalledFunction*> Find(const tensorflow::NameAttrList& function,
                                 const Site& site) override;

  // For tests.
  struct Stats {
    int64_t functions = 0;
    int64_t compilations = 0;
  };
  Stats stats() const;

 private:
  class Instance;
  struct Compiled;
  class Call;

  FunctionRuntime(const tensorflow::ConfigProto& config,
                  std::vector<std::shared_ptr<Device>> devices,
                  std::shared_ptr<KernelStore> kernels);
  StatusOr<std::unique_ptr<const Compiled>> Compile(const Instance& instance)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(compile_mu_);

  const tensorflow::ConfigProto config_;
  const std::vector<std::shared_ptr<Device>> devices_;
  std::vector<DeviceInfo> device_infos_;
  const std::shared_ptr<KernelStore> kernels_;

  // Before mu_.
  Mutex compile_mu_;
  StatefulPlacements placements_ ABSL_GUARDED_BY(compile_mu_);
  bool warned_of_missing_gpu_ ABSL_GUARDED_BY(compile_mu_) = false;

  mutable Mutex mu_;
  int64_t compilations_ ABSL_GUARDED_BY(mu_) = 0;
  HashMap<std::string, std::unique_ptr<Instance>> instances_ ABSL_GUARDED_BY(mu_);
};

}  // namespace millrace

#endif  // MILLRACE_RUNTIME_SESSION_FUNCTION_RUNTIME_H_
