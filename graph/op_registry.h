// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_GRAPH_OP_REGISTRY_H_
#define MILLRACE_GRAPH_OP_REGISTRY_H_

// The op registry: what each op kind is: its OpDef, its shape function and its gradient.
//
// An op family registers its ops in its .cc, before main, in TensorFlow's textual
// spec language:
//
//   const OpRegistration kMatMul =
//       OpSpec("MatMul", "a: T, b: T -> product: T",
//              "transpose_a: bool = false; transpose_b: bool = false; "
//              "T: {bfloat16, half, float, double, int32, int64, complex64, complex128}")
//           .With(RuledKernelFor<MatMulRule>(RunMatMul))
//           .Gradient(MatMulGradient);
//
// What belongs to an op and is no concern of this registry is registered with it, under its name:
// its kernels (runtime/kernel.h; one behind a rule brings the rule along), what it makes of int
// values (graph/partial_value.h).
//
// What an op makes of its inputs' shapes is said by a rule (graph/op_rule.h), which the framework
// calls in the graph and in a step, or, where only the graph has what it needs (what a handle
// holds), by a shape function. A gradient function returns a Status, or the gradient itself
// (graph/gradient.h).
//
// Spec language: inputs and outputs "name: float", "name: T", "name: N * T", "name: Ts"
// (list(type) attr), "name: Ref(T)"; attrs "name: type", with types string, int,
// float, bool, type, shape, tensor, func, list(...), a set "{float, double}" or
// "{'SAME', 'VALID'}", the words numbertype, numerictype, quantizedtype, realnumbertype, a minimum
// ("int >= 1", "list(type) >= 1") and a default ("= 3", "= DT_FLOAT", "= []", "= {dim...}").
// The words may also stand inside a set ("{numbertype, variant}"). An attr that sizes an argument
// (N, Ts) has minimum 1 unless it says otherwise.
//
// Registrations before the first look-up (those of libraries that are linked) are parsed together,
// at that look-up. A library that is loaded later adds its ops: look-ups after its registration see
// them (all that it brings or nothing, graph/pending_registrations.h). An entry never changes,
// moves or goes away: a second registration of a name is an error.
//
// Thread-safety: any thread. A look-up reads an immutable snapshot and takes no lock, but for the
// first one after a registration, which publishes the next snapshot. Entries live as long as the
// process.

#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/dtype.h"
#include "core/status.h"
#include "graph/op_traits.h"

namespace tensorflow {
class AttrValue;
class NodeDef;
class OpDef;
class OpDef_AttrDef;  // OpDef::AttrDef
}  // namespace tensorflow

namespace millrace {

class InferenceContext;  // graph/shape_inference.h
class GradientContext;   // graph/gradient.h

// Runs rule R in the graph. Defined in graph/shape_inference.h.
template <typename R>
Status InferByRule(InferenceContext* c);

using ShapeFn = std::function<Status(InferenceContext*)>;
using GradientFn = std::function<Status(GradientContext*)>;

struct OpEntry {
  explicit OpEntry(std::shared_ptr<const tensorflow::OpDef> op_def)
      : owned_def(std::move(op_def)), def(*owned_def) {}

  enum class Differentiability {
    kUnknown,            // no gradient registered: an error when one is asked for
    kNotDifferentiable,  // declared so: no gradient flows
    kHasGradient,
  };
  std::shared_ptr<const tensorflow::OpDef> owned_def;
  const tensorflow::OpDef& def;
  ShapeFn shape_fn;  // never empty for a registered op
  Differentiability differentiability = Differentiability::kUnknown;
  GradientFn gradient_fn;
  OpTraits traits;
};

class OpSpec {
 public:
  explicit OpSpec(absl::string_view name);
  // Arguments as "input: T, other: N * T -> output: T" (no arrow: no outputs), attrs as
  // "T: type; N: int >= 2".
  OpSpec(absl::string_view name, absl::string_view arguments, absl::string_view attrs = "");
  OpSpec& Input(absl::string_view spec);
  OpSpec& Output(absl::string_view spec);
  OpSpec& Attr(absl::string_view spec);
  OpSpec& Stateful();
  OpSpec& Commutative();
  OpSpec& Aggregate();
  OpSpec& AllowsUninitializedInput();
  // Traits: what passes and plans know of the op (graph/op_traits.h).
  OpSpec& MakesVariable();
  OpSpec& TakesVariable(int input, VariableUse use);
  OpSpec& TakesVariablesFrom(int first_input, VariableUse use);
  OpSpec& SameEachStep();
  OpSpec& DescribesShape();
  OpSpec& UsesFiles();
  OpSpec& Trigger();
  OpSpec& HandsOn(millrace::HandsOn what);
  OpSpec& ToBeFed(Feeding feeding);
  OpSpec& WaitsForSteps(millrace::WaitsForSteps when);
  OpSpec& Deprecated(int since_version, absl::string_view explanation);
  OpSpec& Shape(ShapeFn fn);
  template <typename R>
  OpSpec& Rule() {
    return Shape(&InferByRule<R>);
  }
  OpSpec& Gradient(GradientFn fn);
  // `fn` returns the gradient of input 0, or those of all inputs (graph/gradient.h).
  template <typename Returned>
  OpSpec& Gradient(Returned (*fn)(GradientContext*)) {
    if constexpr (std::is_same_v<Returned, Status>) {
      return Gradient(GradientFn(fn));
    } else {
      return Gradient(GradientFnOf(fn));
    }
  }
  OpSpec& NotDifferentiable();
  // part.AddTo(this), which calls the methods above and below.
  template <typename Part>
  OpSpec& With(const Part& part) {
    part.AddTo(this);
    return *this;
  }
  template <typename Part>
  OpSpec& With(const std::vector<Part>& parts) {
    for (const Part& part : parts) part.AddTo(this);
    return *this;
  }
  // Calls `fn` with the op's name when the op is registered.
  OpSpec& OnRegistration(std::function<void(const std::string& op)> fn);

  // Parses the specs. InvalidArgument names the op and the part that is wrong.
  StatusOr<OpEntry> Build() const;
  const std::string& name() const { return name_; }
  const std::vector<std::function<void(const std::string&)>>& on_registration() const {
    return on_registration_;
  }

 private:
  std::string name_;
  std::vector<std::string> inputs_, outputs_, attrs_;
  bool stateful_ = false, commutative_ = false, aggregate_ = false;
  bool allows_uninitialized_input_ = false;
  int deprecated_since_ = 0;  // 0: not deprecated
  std::string deprecation_;
  ShapeFn shape_fn_;
  OpEntry::Differentiability differentiability_ = OpEntry::Differentiability::kUnknown;
  GradientFn gradient_fn_;
  OpTraits traits_;
  std::vector<std::function<void(const std::string&)>> on_registration_;
};

// Registers at construction; meant for namespace-scope constants. An error (bad spec, a name
// registered twice) is kept and reported by OpRegistrationStatus() and by every look-up of that op
// that finds no entry: of two registrations before the first look-up neither counts, a later one
// leaves the entry that others use.
class OpRegistration {
 public:
  OpRegistration(const OpSpec& spec);  // NOLINT: converts from the finished spec
};

// Null when no op has this name.
const OpEntry* LookUpOp(absl::string_view name);
// Those of the op of this name; none of them when there is no such op.
const OpTraits& TraitsOf(absl::string_view op);
// NotFound: "Op type not registered 'X' in binary running on ...; ...".
StatusOr<const OpEntry*> FindOp(absl::string_view name);
// All entries, sorted by name.
std::vector<const OpEntry*> AllOps();
// The first error of any registration in this process.
Status OpRegistrationStatus();

// The types that a word of the spec language stands for ("numbertype"); empty for other words.
absl::Span<const DType> TypesOfWord(absl::string_view word);

// Adds the defaults of `op` for attrs that `node` lacks.
void AddDefaultAttrs(const tensorflow::OpDef& op, tensorflow::NodeDef* node);

// The rules of one attr: kind, known and non-reference types, allowed values, minimum. The message
// begins with "attr 'name' must ".
Status ValidateAttrValue(const tensorflow::OpDef_AttrDef& rule, const tensorflow::AttrValue& value);

// Equal but for documentation (summaries, descriptions, the explanation of a deprecation).
// `difference` (may be null) gets what differs, from `a` to `b`.
bool OpDefsEqual(const tensorflow::OpDef& a, const tensorflow::OpDef& b, std::string* difference);

}  // namespace millrace

#endif  // MILLRACE_GRAPH_OP_REGISTRY_H_
