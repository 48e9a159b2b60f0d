// SPDX-License-Identifier: Apache-2.0
#include "saver/model_signature.h"

#include <utility>

#include "core/status.h"
#include "proto/meta_graph.pb.h"

namespace millrace {

SignatureTensor::SignatureTensor(const tensorflow::TensorInfo& info)
    : name_(info.name()), dtype_(DTypeFromNumber(info.dtype()).value_or(DT_INVALID)) {
  if (!info.has_tensor_shape()) return;
  if (StatusOr<PartialShape> shape = PartialShape::FromProto(info.tensor_shape()); shape.ok()) {
    shape_ = *std::move(shape);
  }
}

struct ModelSignature::Content {
  explicit Content(tensorflow::SignatureDef signature) : def(std::move(signature)) {
    for (const auto& [name, info] : def.inputs()) inputs.emplace(name, info);
    for (const auto& [name, info] : def.outputs()) outputs.emplace(name, info);
  }
  const tensorflow::SignatureDef def;
  std::map<std::string, SignatureTensor> inputs, outputs;
};

ModelSignature::ModelSignature() : ModelSignature(tensorflow::SignatureDef()) {}
ModelSignature::ModelSignature(tensorflow::SignatureDef def)
    : content_(std::make_shared<const Content>(std::move(def))) {}
const std::string& ModelSignature::method_name() const { return def().method_name(); }
const std::map<std::string, SignatureTensor>& ModelSignature::inputs() const {
  return content_->inputs;
}
const std::map<std::string, SignatureTensor>& ModelSignature::outputs() const {
  return content_->outputs;
}
const tensorflow::SignatureDef& ModelSignature::def() const { return content_->def; }

}  // namespace millrace
