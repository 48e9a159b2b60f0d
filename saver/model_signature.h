// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SAVER_MODEL_SIGNATURE_H_
#define MILLRACE_SAVER_MODEL_SIGNATURE_H_

// ModelSignature: what callers of a model may feed and fetch, by names of their own; and the names
// of signatures and methods that everybody knows.
//
// Thread-safety: immutable values. Failure: none; what a file says that is not sound stays in the
// message (def()) and is DT_INVALID or unknown in the fields.

#include <map>
#include <memory>
#include <string>

#include "core/dtype.h"
#include "core/shape.h"

namespace tensorflow {
class SignatureDef;
class TensorInfo;
}  // namespace tensorflow

namespace millrace {

inline constexpr char kDefaultServingSignature[] = "serving_default";
inline constexpr char kInitOpSignature[] = "__saved_model_init_op";
inline constexpr char kPredictMethod[] = "tensorflow/serving/predict";
inline constexpr char kClassifyMethod[] = "tensorflow/serving/classify";
inline constexpr char kRegressMethod[] = "tensorflow/serving/regress";

// A tensor as a signature names it.
class SignatureTensor {
 public:
  explicit SignatureTensor(const tensorflow::TensorInfo& info);
  // "x:0"; "" for a sparse tensor, which has several names (ModelSignature::def has them).
  const std::string& name() const { return name_; }
  DType dtype() const { return dtype_; }
  const PartialShape& shape() const { return shape_; }

 private:
  std::string name_;
  DType dtype_;
  PartialShape shape_;  // unknown where the file says nothing sound
};

// What callers of a model may feed and fetch, by names of their own. Immutable; copies share.
class ModelSignature {
 public:
  ModelSignature();  // of nothing
  explicit ModelSignature(tensorflow::SignatureDef def);
  const std::string& method_name() const;
  const std::map<std::string, SignatureTensor>& inputs() const;
  const std::map<std::string, SignatureTensor>& outputs() const;
  // The message that it is in a file.
  const tensorflow::SignatureDef& def() const;

 private:
  struct Content;
  std::shared_ptr<const Content> content_;
};

}  // namespace millrace

#endif  // MILLRACE_SAVER_MODEL_SIGNATURE_H_
