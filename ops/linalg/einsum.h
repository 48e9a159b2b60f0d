// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_LINALG_EINSUM_H_
#define MILLRACE_OPS_LINALG_EINSUM_H_

// Einsum: sums of products of tensors by the labels of their dimensions, as tf.einsum writes them.
//
//   Einsum(m, "ij,jk->ik", {a, b});        // the product of matrices
//   Einsum(m, "bij,bjk->bik", {a, b});     // of each of a batch
//   Einsum(m, "ij->ji", {a});              // the transpose
//   Einsum(m, "i,j->ij", {u, v});          // the outer product
//
// A label is a letter; equal labels are one dimension. Labels that the result does not have are
// summed over. Without "->" the result has those that appear once, in alphabetical order. The nodes
// are Transpose, Reshape, Mul, Sum and MatMul (BatchMatMulV2 with labels of a batch), so gradients
// come from them; operands are taken from left to right. Named "einsum".
//
// Errors (in the Scope): InvalidArgument for an equation that is none, one for another number of
// tensors, and a tensor of another rank than its labels; Unimplemented for "..." and a label twice
// in one tensor.

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "graph/node_builder.h"

namespace millrace {

Output Einsum(ScopeAt at, absl::string_view equation, absl::Span<const Output> inputs);

}  // namespace millrace

#endif  // MILLRACE_OPS_LINALG_EINSUM_H_
