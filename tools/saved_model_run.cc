// SPDX-License-Identifier: Apache-2.0
#include "tools/saved_model_run.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/tensor.h"
#include "formats/npy.h"
#include "formats/tensor_json.h"
#include "graph/graph_def.h"
#include "nlohmann/json.hpp"
#include "runtime/session.h"
#include "saver/saved_model.h"
#include "tools/numpy_format.h"
#include "tools/python_error.h"
#include "tools/saved_model_show.h"

namespace millrace {
namespace {

// The name of the tensor, unless it is one of a kind that the tool does not feed or fetch.
StatusOr<std::string> NameToFeedOrFetch(const std::string& key,
                                        const tensorflow::TensorInfo& info) {
  if (info.encoding_case() != tensorflow::TensorInfo::kName || info.name().empty()) {
    return PythonError("ValueError", absl::StrCat("\"", key,
                                                  "\" must be a dense tensor with a "
                                                  "name, got another encoding"));
  }
  return info.name();
}

Status SaveOutput(FileSystem* fs, const SavedModelRun& run, const std::string& key,
                  const Tensor& tensor, std::ostream& out) {
  // A model must not choose where on the disk it writes.
  if (absl::StrContains(key, '/') || key == "." || key == "..") {
    return PythonError("ValueError", absl::StrCat("Output key \"", key,
                                                  "\" must be a plain file name to be saved"));
  }
  const std::string path = JoinPath(run.outdir, key + ".npy");
  if (!run.overwrite && fs->FileExists(path)) {
    return PythonError("RuntimeError",
                       absl::StrCat("Output file ", path,
                                    " already exists. Add \"--overwrite\" to overwrite the "
                                    "existing output files."));
  }
  if (const Status status = WriteNpy(fs, path, tensor); !status.ok()) {
    return PythonErrorFromStatus(status);
  }
  out << "Output " << key << " is saved to " << path << "\n";
  return absl::OkStatus();
}

}  // namespace

SessionOptions ToolSessionOptions() {
  SessionOptions options;
  options.config.allow_soft_placement = true;
  return options;
}

Status RunSavedModel(FileSystem* fs, const SavedModelRun& run, std::ostream& out,
                     std::ostream& warnings) {
  tensorflow::SignatureDef signature;
  tensorflow::MetaGraphDef meta;
  // The flags are checked before a model that may be large is loaded.
  if (run.inputs.inputs.empty() && run.inputs.input_exprs.empty() &&
      run.inputs.input_examples.empty()) {
    std::vector<std::string> none;
    return LoadSavedModelInputs(fs, run.inputs, signature, &none).status();
  }
  {
    MR_ASSIGN_OR_RETURN(const tensorflow::SavedModel model, ReadSavedModelForTool(fs, run.dir));
    MR_ASSIGN_OR_RETURN(const tensorflow::MetaGraphDef* meta_graph,
                        MetaGraphWithTags(model, run.tag_set));
    MR_ASSIGN_OR_RETURN(const tensorflow::SignatureDef* found,
                        FindSignature(*meta_graph, run.signature_key));
    signature = *found;
    meta = *meta_graph;
  }
  if (run.clear_devices) ClearDevices(meta.mutable_graph_def());
  std::vector<std::string> lines;
  const auto inputs = LoadSavedModelInputs(fs, run.inputs, signature, &lines);
  for (const std::string& line : lines) warnings << "WARNING: " << line << "\n";
  if (!inputs.ok()) return inputs.status();

  std::vector<Feed> feeds;
  for (const auto& [key, tensor] : *inputs) {
    MR_ASSIGN_OR_RETURN(const std::string name, NameToFeedOrFetch(key, signature.inputs().at(key)));
    // The feeds are a dict by tensor name: of two keys for one tensor the later one counts.
    const auto same = std::find_if(feeds.begin(), feeds.end(),
                                   [&](const Feed& feed) { return feed.name.name() == name; });
    if (same == feeds.end()) {
      feeds.emplace_back(name, tensor);
    } else {
      same->value = tensor;
    }
  }
  std::vector<std::string> keys;
  for (const auto& entry : signature.outputs()) keys.push_back(entry.first);
  std::sort(keys.begin(), keys.end());
  std::vector<FetchName> fetches;
  for (const std::string& key : keys) {
    MR_ASSIGN_OR_RETURN(const std::string name,
                        NameToFeedOrFetch(key, signature.outputs().at(key)));
    fetches.push_back(name);
  }

  StatusOr<SavedModelBundle> bundle =
      LoadMetaGraph(ToolSessionOptions(), run.dir, std::move(meta), fs);
  if (!bundle.ok()) return PythonErrorFromStatus(bundle.status());
  const StatusOr<std::vector<Tensor>> outputs = bundle->session->Run(feeds, fetches);
  if (!outputs.ok()) return PythonErrorFromStatus(outputs.status());
  if (outputs->size() != keys.size()) {
    return PythonError("ValueError",
                       "an output of the signature must be a tensor, got an operation");
  }

  if (!run.outdir.empty()) {
    if (const Status made = fs->RecursivelyCreateDirectory(run.outdir); !made.ok()) {
      return PythonErrorFromStatus(made);
    }
  }
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (size_t i = 0; i < keys.size(); ++i) {
    const Tensor& tensor = (*outputs)[i];
    if (run.json) {
      if (const Status made = TensorToJson(tensor, &json[keys[i]]); !made.ok()) {
        return PythonErrorFromStatus(Prefixed(absl::StrCat("output ", keys[i]), made));
      }
      if (!run.outdir.empty()) MR_RETURN_IF_ERROR(SaveOutput(fs, run, keys[i], tensor, warnings));
      continue;
    }
    out << "Result for output key " << keys[i] << ":\n" << NumpyString(tensor) << "\n";
    if (!run.outdir.empty()) MR_RETURN_IF_ERROR(SaveOutput(fs, run, keys[i], tensor, out));
  }
  if (run.json) out << JsonText(json);
  return absl::OkStatus();
}

}  // namespace millrace
