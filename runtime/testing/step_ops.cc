// SPDX-License-Identifier: Apache-2.0
#include "runtime/testing/step_ops.h"

#include <x86intrin.h>

#include <cstdio>
#include <cstdlib>
#include <map>

#include "absl/strings/str_cat.h"
#include "core/mutex.h"
#include "core/status.h"
#include "graph/attr.h"
#include "graph/shape_inference.h"
#include "proto/node_def.pb.h"
#include "runtime/rendezvous.h"
#include "runtime/resource_manager.h"
#include "runtime/variable_storage.h"

namespace millrace::testing {
namespace {

struct Hooks {
  Mutex mu;
  std::map<std::string, ProbeHook, std::less<>> probes ABSL_GUARDED_BY(mu);
  std::map<std::string, AsyncProbeHook, std::less<>> async ABSL_GUARDED_BY(mu);
  std::map<std::string, std::shared_ptr<VariableStorage>, std::less<>> variables
      ABSL_GUARDED_BY(mu);
};
Hooks& AllHooks() {
  static Hooks* const hooks = new Hooks;
  return *hooks;
}

Status NoSuchHook(absl::string_view name) {
  return Internal("TestProbe: hook '", name, "' must be set");
}

// The hook is looked up when the kernel is built, so that running it takes no lock.
class ProbeKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override {
    MR_ASSIGN_OR_RETURN(const std::string name, c->GetAttr<std::string>("hook"));
    MR_ASSIGN_OR_RETURN(expensive_, c->GetAttr<bool>("expensive"));
    MutexLock lock(&AllHooks().mu);
    auto it = AllHooks().probes.find(name);
    if (it == AllHooks().probes.end()) return NoSuchHook(name);
    hook_ = it->second;
    return absl::OkStatus();
  }
  Status Compute(KernelContext* ctx) const override { return hook_(ctx); }
  bool may_be_expensive() const override { return expensive_; }

 private:
  ProbeHook hook_;
  bool expensive_ = true;
};

class AsyncProbeKernel : public AsyncKernel {
 public:
  Status Init(KernelConstruction* c) override {
    MR_ASSIGN_OR_RETURN(const std::string name, c->GetAttr<std::string>("hook"));
    MutexLock lock(&AllHooks().mu);
    auto it = AllHooks().async.find(name);
    if (it == AllHooks().async.end()) return NoSuchHook(name);
    hook_ = it->second;
    return absl::OkStatus();
  }
  void ComputeAsync(KernelContext* ctx, DoneCallback done) const override {
    hook_(ctx, std::move(done));
  }

 private:
  AsyncProbeHook hook_;
};

class SourceKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override {
    MR_ASSIGN_OR_RETURN(value_, c->GetAttr<float>("value"));
    return absl::OkStatus();
  }
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0, Shape()));
    out->mutable_raw<float>()[0] = value_;
    return absl::OkStatus();
  }
  bool may_be_expensive() const override { return false; }

 private:
  float value_ = 0;
};

class BoolKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override {
    MR_ASSIGN_OR_RETURN(const bool value, c->GetAttr<bool>("value"));
    value_ = Tensor::Scalar<bool>(value);
    return absl::OkStatus();
  }
  Status Compute(KernelContext* ctx) const override {
    ctx->set_output(0, value_);
    return absl::OkStatus();
  }
  bool may_be_expensive() const override { return false; }

 private:
  Tensor value_;
};

class VariableKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override {
    MR_ASSIGN_OR_RETURN(const std::string name, c->GetAttr<std::string>("name"));
    MutexLock lock(&AllHooks().mu);
    auto it = AllHooks().variables.find(name);
    if (it == AllHooks().variables.end()) return NoSuchHook(name);
    variable_ = it->second;
    return absl::OkStatus();
  }
  Status Compute(KernelContext* ctx) const override {
    ctx->set_output_ref(0, variable_);
    return absl::OkStatus();
  }

 private:
  std::shared_ptr<VariableStorage> variable_;
};

class AssignKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(auto ref, ctx->ref_input(0));
    MR_RETURN_IF_ERROR(ref->Assign(ctx->TakeInput(1), true));
    ctx->set_output_ref(0, std::move(ref));
    return absl::OkStatus();
  }
};

class UseRefKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override { return ctx->ref_input(0).status(); }
};

class SpinKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override {
    MR_ASSIGN_OR_RETURN(cycles_, c->GetAttr<int64_t>("cycles"));
    return absl::OkStatus();
  }
  Status Compute(KernelContext*) const override {
    const uint64_t begin = __rdtsc();
    while (__rdtsc() - begin < static_cast<uint64_t>(cycles_)) __builtin_ia32_pause();
    return absl::OkStatus();
  }

 private:
  int64_t cycles_ = 0;
};

OpSpec ProbeSpec(absl::string_view name) {
  return OpSpec(name)
      .Input("inputs: N * float")
      .Output("outputs: M * float")
      .Attr("N: int >= 0")
      .Attr("M: int >= 0")
      .Attr("hook: string")
      .Attr("expensive: bool = true")
      .Stateful()
      .Shape(ValueDependentShape);
}

class ThrowsInInitKernel : public Kernel {
 public:
  Status Init(KernelConstruction*) override { throw 3; }
  Status Compute(KernelContext*) const override { return absl::OkStatus(); }
};

const OpRegistration kProbe = ProbeSpec("TestProbe");
const OpRegistration kProbeAsync = ProbeSpec("TestProbeAsync");
const OpRegistration kSource =
    OpSpec("TestSource").Output("value: float").Attr("value: float").Shape(ScalarShape);
const OpRegistration kBool =
    OpSpec("TestBools").Output("value: bool").Attr("value: bool").Shape(ScalarShape);
const OpRegistration kVariable = OpSpec("TestVariable")
                                     .Output("ref: Ref(float)")
                                     .Attr("name: string")
                                     .Stateful()
                                     .Shape(ScalarShape);
const OpRegistration kAssign = OpSpec("TestAssign")
                                   .Input("ref: Ref(float)")
                                   .Input("value: float")
                                   .Output("output_ref: Ref(float)")
                                   .AllowsUninitializedInput()
                                   .Shape(ScalarShape);
const OpRegistration kUseRef =
    OpSpec("TestUseRef").Input("ref: Ref(float)").Stateful().Shape(NoOutputShape);
const OpRegistration kSpin = OpSpec("TestSpin").Attr("cycles: int").Shape(NoOutputShape);
const OpRegistration kNoKernel = OpSpec("TestNoKernel").Shape(NoOutputShape);
const OpRegistration kThrowsInInit = OpSpec("TestThrowsInInit").Shape(NoOutputShape);

const KernelRegistration kProbeKernel("TestProbe", KernelFor<ProbeKernel>());
const KernelRegistration kProbeAsyncKernel("TestProbeAsync", KernelFor<AsyncProbeKernel>());
const KernelRegistration kSourceKernel("TestSource", KernelFor<SourceKernel>());
const KernelRegistration kBoolKernel("TestBools", KernelFor<BoolKernel>());
const KernelRegistration kVariableKernel("TestVariable", KernelFor<VariableKernel>());
const KernelRegistration kAssignKernel("TestAssign", KernelFor<AssignKernel>());
const KernelRegistration kUseRefKernel("TestUseRef", KernelFor<UseRefKernel>());
const KernelRegistration kSpinKernel("TestSpin", KernelFor<SpinKernel>());
const KernelRegistration kThrowsInInitKernel("TestThrowsInInit", KernelFor<ThrowsInInitKernel>());

[[noreturn]] void Die(const Status& status) {
  std::fprintf(stderr, "TestGraph: %s\n", status.ToString().c_str());
  std::abort();
}

}  // namespace

void SetHook(absl::string_view name, ProbeHook hook) {
  MutexLock lock(&AllHooks().mu);
  AllHooks().probes.insert_or_assign(std::string(name), std::move(hook));
}

void SetAsyncHook(absl::string_view name, AsyncProbeHook hook) {
  MutexLock lock(&AllHooks().mu);
  AllHooks().async.insert_or_assign(std::string(name), std::move(hook));
}

void SetTestVariable(absl::string_view name, std::shared_ptr<VariableStorage> variable) {
  MutexLock lock(&AllHooks().mu);
  AllHooks().variables.insert_or_assign(std::string(name), std::move(variable));
}

void ClearHooks() {
  MutexLock lock(&AllHooks().mu);
  AllHooks().probes.clear();
  AllHooks().async.clear();
  AllHooks().variables.clear();
}

Node* TestGraph::Add(absl::string_view op, absl::string_view name, const std::vector<In>& inputs,
                     const std::vector<std::pair<std::string, tensorflow::AttrValue>>& attrs,
                     const std::vector<Node*>& controls) {
  tensorflow::NodeDef def;
  def.set_op(std::string(op));
  def.set_name(std::string(name));
  for (const auto& [key, value] : attrs) (*def.mutable_attr())[key] = value;
  StatusOr<Node*> node = graph_.AddNode(std::move(def));
  if (!node.ok()) Die(node.status());
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Status added =
        graph_.AddEdge(inputs[i].node, inputs[i].output, *node, static_cast<int>(i));
    if (!added.ok()) Die(added);
  }
  for (Node* control : controls) graph_.AddControlEdge(control, *node);
  return *node;
}

Node* TestGraph::NoOp(absl::string_view name, const std::vector<Node*>& controls) {
  return Add("NoOp", name, {}, {}, controls);
}

Node* TestGraph::Source(absl::string_view name, float value, const std::vector<Node*>& controls) {
  return Add("TestSource", name, {}, {{"value", AttrOf(value)}}, controls);
}

Node* TestGraph::Bool(absl::string_view name, bool value) {
  return Add("TestBools", name, {}, {{"value", AttrOf(value)}});
}

Node* TestGraph::Identity(absl::string_view name, In input, const std::vector<Node*>& controls) {
  return Add("Identity", name, {input},
             {{"T", AttrOf(WithoutRef(input.node->output_type(input.output)))}}, controls);
}

Node* TestGraph::Switch(absl::string_view name, In data, In pred) {
  return Add("Switch", name, {data, pred}, {{"T", AttrOf(data.node->output_type(data.output))}});
}

Node* TestGraph::Merge(absl::string_view name, const std::vector<In>& inputs,
                       const std::vector<Node*>& controls) {
  return Add("Merge", name, inputs,
             {{"T", AttrOf(inputs[0].node->output_type(inputs[0].output))},
              {"N", AttrOf(static_cast<int64_t>(inputs.size()))}},
             controls);
}

namespace {
std::vector<std::pair<std::string, tensorflow::AttrValue>> ProbeAttrs(size_t inputs, int outputs,
                                                                      absl::string_view hook) {
  return {{"N", AttrOf(static_cast<int64_t>(inputs))},
          {"M", AttrOf(static_cast<int64_t>(outputs))},
          {"hook", AttrOf(hook)}};
}
}  // namespace

Node* TestGraph::Probe(absl::string_view name, const std::vector<In>& inputs, int outputs,
                       absl::string_view hook, const std::vector<Node*>& controls) {
  return Add("TestProbe", name, inputs, ProbeAttrs(inputs.size(), outputs, hook), controls);
}

Node* TestGraph::ProbeAsync(absl::string_view name, const std::vector<In>& inputs, int outputs,
                            absl::string_view hook, const std::vector<Node*>& controls) {
  return Add("TestProbeAsync", name, inputs, ProbeAttrs(inputs.size(), outputs, hook), controls);
}

namespace {
std::pair<std::string, tensorflow::AttrValue> TypeOf(const TestGraph::In& input) {
  return {"T", AttrOf(input.node->output_type(input.output))};
}
}  // namespace

Node* TestGraph::Enter(absl::string_view name, In input, absl::string_view frame, bool is_constant,
                       int64_t parallel_iterations) {
  return Add("Enter", name, {input},
             {TypeOf(input),
              {"frame_name", AttrOf(frame)},
              {"is_constant", AttrOf(is_constant)},
              {"parallel_iterations", AttrOf(parallel_iterations)}});
}

Node* TestGraph::LoopMerge(absl::string_view name, In enter, const std::vector<Node*>& controls) {
  return Merge(name, {enter, enter}, controls);
}

Node* TestGraph::Close(Node* merge, In back) {
  Node* const next =
      Add("NextIteration", absl::StrCat(merge->name(), "/next"), {back}, {TypeOf(back)});
  const Status updated = graph_.UpdateInput(merge, 1, next, 0);
  if (!updated.ok()) Die(updated);
  return next;
}

Node* TestGraph::LoopCond(absl::string_view name, In input) {
  return Add("LoopCond", name, {input});
}

Node* TestGraph::Exit(absl::string_view name, In input) {
  return Add("Exit", name, {input}, {TypeOf(input)});
}

TestStep::TestStep(int num_threads) : arena(Arena::Make(num_threads)) {
  device.name = "/job:localhost/replica:0/task:0/device:CPU:0";
  device.type = "CPU";
  device.incarnation = 1;
  device.resources = std::make_unique<ResourceManager>(device.name);
  context.step_id = 1;
  context.device = &device;
  context.rendezvous = MakeLocalRendezvous();
  context.cancellation = &cancellation;
  context.arena = arena.get();
}
TestStep::~TestStep() = default;

}  // namespace millrace::testing
