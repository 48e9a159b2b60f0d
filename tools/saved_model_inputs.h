// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TOOLS_SAVED_MODEL_INPUTS_H_
#define MILLRACE_TOOLS_SAVED_MODEL_INPUTS_H_

// The inputs of `saved_model_cli run`: what --inputs, --input_exprs and --input_examples say, as
// tensors by signature key.
//
//   --inputs 'x=a.npy;y=b.npz[name]'       arrays in numpy's files
//   --input_exprs 'x=[[1.0], [2.0]]'       Python literals, 'x=np.ones((2, 1))' and its kin
//                                          (tools/python_literal.h); nothing is evaluated
//   --input_examples 'x=[{"f": [1.0]}]'    tf.Examples, serialized to strings
//
// For a key that is given more than once --input_examples wins over --input_exprs, which wins over
// --inputs, with a warning.
//
// The inputs are in the order of a Python dict that the flags fill one after the other: where a
// key came first. It matters when two keys of a signature name one tensor: the last one is fed.
//
// Thread-safety: pure functions and files. Failure: the Statuses of tools/python_error.h.

#include <string>
#include <utility>
#include <vector>

#include "core/file_system.h"
#include "core/status.h"
#include "core/tensor.h"
#include "proto/meta_graph.pb.h"

namespace millrace {

struct SavedModelInputFlags {
  std::string inputs = {}, input_exprs = {}, input_examples = {};
};

// Tensors of the dtypes that the signature says. Lines for stderr are added to `warnings`. Keys
// that the signature lacks are a ValueError that lists the ones it has.
StatusOr<std::vector<std::pair<std::string, Tensor>>> LoadSavedModelInputs(
    FileSystem* fs, const SavedModelInputFlags& flags, const tensorflow::SignatureDef& signature,
    std::vector<std::string>* warnings);

}  // namespace millrace

#endif  // MILLRACE_TOOLS_SAVED_MODEL_INPUTS_H_
