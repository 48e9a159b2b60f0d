// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_GRAPH_OP_REGISTRY_H_
#define MILLRACE_GRAPH_OP_REGISTRY_H_

// The op registry: what each op kind is: its OpDef, its shape function and its gradient.
//
// An op family registers its ops in its .cc, before main, in TensorFlow's textual
// spec language:
//
//   const OpRegistration kMatMul =
//       OpSpec("MatMul")
//           .Input("a: T").Input("b: T").Output("product: T")
//           .Attr("transpose_a: bool = false").Attr("transpose_b: bool = false")
//           .Attr("T: {bfloat16, half, float, double, int32, int64, complex64, complex128}")
//           .Shape(MatMulShape).Gradient(MatMulGradient);
//
// Spec language: inputs and outputs "name: float", "name: T", "name: N * T", "name: Ts"
// (list(type) attr), "name: Ref(T)"; attrs "name: type", with types string, int,
// float, bool, type, shape, tensor, func, list(...), a set "{float, double}" or
// "{'SAME', 'VALID'}", the words numbertype, numerictype, quantizedtype, realnumbertype, a minimum
// ("int >= 1", "list(type) >= 1") and a default ("= 3", "= DT_FLOAT", "= []", "= {dim...}").
// The words may also stand inside a set ("{numbertype, variant}"). An attr that sizes an argument
// (N, Ts) has minimum 1 unless it says otherwise.
//
// The registry is frozen at the first look-up; a later registration is an error.
// Thread-safety: look-ups from any thread. Entries live as long as the process.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/status.h"
#include "proto/attr_value.pb.h"
#include "proto/node_def.pb.h"
#include "proto/op_def.pb.h"

namespace millrace {

class InferenceContext;  // graph/shape_inference.h
class GradientContext;   // graph/gradient.h

using ShapeFn = std::function<Status(InferenceContext*)>;
using GradientFn = std::function<Status(GradientContext*)>;

struct OpEntry {
  enum class Differentiability {
    kUnknown,            // no gradient registered: an error when one is asked for
    kNotDifferentiable,  // declared so: no gradient flows
    kHasGradient,
  };
  tensorflow::OpDef def;
  ShapeFn shape_fn;  // never empty for a registered op
  Differentiability differentiability = Differentiability::kUnknown;
  GradientFn gradient_fn;
};

class OpSpec {
 public:
  explicit OpSpec(absl::string_view name);
  OpSpec& Input(absl::string_view spec);
  OpSpec& Output(absl::string_view spec);
  OpSpec& Attr(absl::string_view spec);
  OpSpec& Stateful();
  OpSpec& Commutative();
  OpSpec& Aggregate();
  OpSpec& AllowsUninitializedInput();
  OpSpec& Deprecated(int since_version, absl::string_view explanation);
  OpSpec& Shape(ShapeFn fn);
  OpSpec& Gradient(GradientFn fn);
  OpSpec& NotDifferentiable();

  // Parses the specs. InvalidArgument names the op and the part that is wrong.
  StatusOr<OpEntry> Build() const;
  const std::string& name() const { return name_; }

 private:
  std::string name_;
  std::vector<std::string> inputs_, outputs_, attrs_;
  OpEntry entry_;
};

// Registers at construction; meant for namespace-scope constants. An error (bad spec, a name
// registered twice) is kept and reported by OpRegistrationStatus() and by every look-up of that op.
class OpRegistration {
 public:
  OpRegistration(const OpSpec& spec);  // NOLINT: converts from the finished spec
};

// Null when no op has this name.
const OpEntry* LookUpOp(absl::string_view name);
// NotFound: "Op type not registered 'X' in binary running on ...; ...".
StatusOr<const OpEntry*> FindOp(absl::string_view name);
// All entries, sorted by name.
std::vector<const OpEntry*> AllOps();
// The first error of any registration in this process.
Status OpRegistrationStatus();

// Adds the defaults of `op` for attrs that `node` lacks.
void AddDefaultAttrs(const tensorflow::OpDef& op, tensorflow::NodeDef* node);

// The rules of one attr: kind, known and non-reference types, allowed values, minimum. The message
// begins with "attr 'name' must ".
Status ValidateAttrValue(const tensorflow::OpDef::AttrDef& rule,
                         const tensorflow::AttrValue& value);

// Equal but for documentation (summaries, descriptions, the explanation of a deprecation).
// `difference` (may be null) gets what differs, from `a` to `b`.
bool OpDefsEqual(const tensorflow::OpDef& a, const tensorflow::OpDef& b, std::string* difference);

}  // namespace millrace

#endif  // MILLRACE_GRAPH_OP_REGISTRY_H_
