// SPDX-License-Identifier: Apache-2.0
//
// The wire contract with TensorFlow Serving's clients, read a second time: the tables below were
// written from its schemas, not from ours, and are compared with the generated descriptors in both
// directions, as in proto/descriptor_table_test.cc.
//
// A field's line is `number type name [oneof]`, `?` after the number of an optional scalar; names
// of types are relative to the package tensorflow.serving, those of the package tensorflow begin
// with `tf.`.

#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "core/testing/shared_data.h"
#include "proto/serving/get_model_metadata.pb.h"
#include "proto/serving/method_paths.h"
#include "proto/serving/model_management.pb.h"
#include "proto/serving/model_server_config.pb.h"
#include "proto/serving/model_service.pb.h"
#include "proto/serving/monitoring_config.pb.h"
#include "proto/serving/platform_config.pb.h"
#include "proto/serving/prediction_log.pb.h"
#include "proto/serving/prediction_service.pb.h"
#include "proto/serving/saved_model_bundle_source_adapter.pb.h"
#include "proto/serving/session_bundle_config.pb.h"
#include "proto/serving/ssl_config.pb.h"

// covers: serving: every message, field, number and method of TensorFlow Serving's API and
//   configuration files

namespace millrace {
namespace {

using ::google::protobuf::Descriptor;
using ::google::protobuf::DescriptorPool;
using ::google::protobuf::EnumDescriptor;
using ::google::protobuf::FieldDescriptor;
using ::google::protobuf::FileDescriptor;

constexpr absl::string_view kMessages = R"(
ModelSpec
  1 string name
  2 google.protobuf.Int64Value version version_choice
  3 string signature_name
  4 string version_label version_choice
ExampleList
  1 repeated tf.Example examples
ExampleListWithContext
  1 repeated tf.Example examples
  2 tf.Example context
Input
  1 ExampleList example_list kind
  2 ExampleListWithContext example_list_with_context kind
PredictRequest
  1 ModelSpec model_spec
  2 map<string,tf.TensorProto> inputs
  3 repeated string output_filter
  5 PredictStreamedOptions predict_streamed_options
  6? bytes client_id
  7? PredictRequest.RequestOptions request_options
PredictRequest.RequestOptions
  1? bytes client_id
  2? PredictRequest.RequestOptions.DeterministicMode deterministic_mode
  3? bool return_additional_arrays_from_prefill
  4 repeated int64 return_stoptokens
  6? int64 max_cache_length
  9? bool return_all_stoptokens
  13? PredictRequest.RequestOptions.Handshake handshake
PredictRequest.RequestOptions.Handshake
  1 int64 estimated_payload_bytes
PredictStreamedOptions
  1 PredictStreamedOptions.RequestState request_state
  2 map<string,int32> split_dimensions
  3 bool return_single_response
PredictResponse
  1 map<string,tf.TensorProto> outputs
  2 ModelSpec model_spec
Class
  1 string label
  2 float score
Classifications
  1 repeated Class classes
ClassificationResult
  1 repeated Classifications classifications
ClassificationRequest
  1 ModelSpec model_spec
  2 Input input
ClassificationResponse
  1 ClassificationResult result
  2 ModelSpec model_spec
Regression
  1 float value
RegressionResult
  1 repeated Regression regressions
RegressionRequest
  1 ModelSpec model_spec
  2 Input input
RegressionResponse
  1 RegressionResult result
  2 ModelSpec model_spec
InferenceTask
  1 ModelSpec model_spec
  2 string method_name
InferenceResult
  1 ModelSpec model_spec
  2 ClassificationResult classification_result result
  3 RegressionResult regression_result result
MultiInferenceRequest
  1 repeated InferenceTask tasks
  2 Input input
MultiInferenceResponse
  1 repeated InferenceResult results
SignatureDefMap
  1 map<string,tf.SignatureDef> signature_def
GetModelMetadataRequest
  1 ModelSpec model_spec
  2 repeated string metadata_field
GetModelMetadataResponse
  1 ModelSpec model_spec
  2 map<string,google.protobuf.Any> metadata
StatusProto
  1 tf.error.Code error_code
  2 string error_message
GetModelStatusRequest
  1 ModelSpec model_spec
ModelVersionStatus
  1 int64 version
  2 ModelVersionStatus.State state
  3 StatusProto status
GetModelStatusResponse
  1 repeated ModelVersionStatus model_version_status
ReloadConfigRequest
  1 ModelServerConfig config
  2 repeated string metric_names
Metric
  1 string name
  2 int64 int64_value_increase value_increase
ReloadConfigResponse
  1 StatusProto status
  2 repeated Metric metric
SessionRunRequest
  1 ModelSpec model_spec
  2 repeated tf.NamedTensorProto feed
  3 repeated string fetch
  4 repeated string target
  5 tf.RunOptions options
  6 bool tensor_name_is_alias
SessionRunResponse
  1 repeated tf.NamedTensorProto tensor
  2 tf.RunMetadata metadata
  3 ModelSpec model_spec
ClassifyLog
  1 ClassificationRequest request
  2 ClassificationResponse response
RegressLog
  1 RegressionRequest request
  2 RegressionResponse response
PredictLog
  1 PredictRequest request
  2 PredictResponse response
PredictStreamedLog
  1 repeated PredictRequest request
  2 repeated PredictResponse response
MultiInferenceLog
  1 MultiInferenceRequest request
  2 MultiInferenceResponse response
SessionRunLog
  1 SessionRunRequest request
  2 SessionRunResponse response
PredictionLog
  1 LogMetadata log_metadata
  2 ClassifyLog classify_log log_type
  3 RegressLog regress_log log_type
  4 MultiInferenceLog multi_inference_log log_type
  5 SessionRunLog session_run_log log_type
  6 PredictLog predict_log log_type
  7 PredictStreamedLog predict_streamed_log log_type
LogMetadata
  1 ModelSpec model_spec
  2 SamplingConfig sampling_config
  3 repeated string saved_model_tags
  4 int64 timestamp_secs
  5 string dc
  6 string request_origin
  7 string request_criticality
  8 int64 safe_aggregation_privacy_key
SamplingConfig
  1 double sampling_rate
  2 int32 attributes
LoggingConfig
  1 LogCollectorConfig log_collector_config
  2 SamplingConfig sampling_config
LogCollectorConfig
  1 string type
  2 string filename_prefix
ModelConfig
  1 string name
  2 string base_path
  3 ModelType model_type
  4 string model_platform
  6 LoggingConfig logging_config
  7 FileSystemStoragePathSourceConfig.ServableVersionPolicy model_version_policy
  8 map<string,int64> version_labels
ModelConfigList
  1 repeated ModelConfig config
ModelServerConfig
  1 ModelConfigList model_config_list config
  2 google.protobuf.Any custom_model_config config
FileSystemStoragePathSourceConfig
  1 string servable_name
  2 string base_path
  3 int64 file_system_poll_wait_seconds
  4 bool fail_if_zero_versions_at_startup
  5 repeated FileSystemStoragePathSourceConfig.ServableToMonitor servables
  6 bool servable_versions_always_present
FileSystemStoragePathSourceConfig.ServableToMonitor
  1 string servable_name
  2 string base_path
  4 FileSystemStoragePathSourceConfig.ServableVersionPolicy servable_version_policy
FileSystemStoragePathSourceConfig.ServableVersionPolicy
  100 FileSystemStoragePathSourceConfig.ServableVersionPolicy.Latest latest policy_choice
  101 FileSystemStoragePathSourceConfig.ServableVersionPolicy.All all policy_choice
  102 FileSystemStoragePathSourceConfig.ServableVersionPolicy.Specific specific policy_choice
FileSystemStoragePathSourceConfig.ServableVersionPolicy.Latest
  1 uint32 num_versions
FileSystemStoragePathSourceConfig.ServableVersionPolicy.All
FileSystemStoragePathSourceConfig.ServableVersionPolicy.Specific
  1 repeated int64 versions
ModelWarmupOptions
  1 google.protobuf.Int32Value num_request_iterations
  2 google.protobuf.Int32Value num_model_warmup_threads
  3 string model_name
  4 int64 model_version
  5 bool enable_all_batch_sizes_warmup
SessionBundleConfig
  1 string session_target
  2 tf.ConfigProto session_config
  3 BatchingParameters batching_parameters
  4 google.protobuf.Int32Value session_run_load_threadpool_index
  5 uint64 experimental_transient_ram_bytes_during_load
  6 repeated string saved_model_tags
  778 repeated tf.NamedTensorProto experimental_fixed_input_tensors
  779 bool enable_model_warmup
  780 ModelWarmupOptions model_warmup_options
  781 bool enable_session_metadata
  782 bool remove_unused_fields_from_bundle_metagraph
  783 bool prefer_tflite_model
  784 bool resource_estimation_uses_validation_result
  785 int32 num_tflite_interpreters
  786 int32 num_tflite_interpreters_per_pool
  787 int32 num_tflite_pools
  788 bool wrap_session_with_no_threading_params
  789 bool enable_per_model_batching_params
  790 bool enable_saved_model_config
BatchingParameters
  1 google.protobuf.Int64Value max_batch_size
  2 google.protobuf.Int64Value batch_timeout_micros
  3 google.protobuf.Int64Value max_enqueued_batches
  4 google.protobuf.Int64Value num_batch_threads
  5 google.protobuf.StringValue thread_pool_name
  6 repeated int64 allowed_batch_sizes
  7 bool pad_variable_length_inputs
  8 google.protobuf.BoolValue enable_large_batch_splitting
  9 google.protobuf.Int64Value max_execution_batch_size
PrometheusConfig
  1 bool enable
  2 string path
MonitoringConfig
  1 PrometheusConfig prometheus_config
SSLConfig
  1 string server_key
  2 string server_cert
  3 string custom_ca
  4 bool client_verify
PlatformConfig
  1 google.protobuf.Any source_adapter_config
PlatformConfigMap
  1 map<string,PlatformConfig> platform_configs
SavedModelBundleSourceAdapterConfig
  1000 SessionBundleConfig legacy_config
)";

constexpr absl::string_view kEnums = R"(
PredictRequest.RequestOptions.DeterministicMode
  0 DETERMINISTIC_MODE_UNSPECIFIED
  1 FIXED_DECODER_SLOT
PredictStreamedOptions.RequestState
  0 NONE
  1 SPLIT
  2 END_SPLIT
  3 CANCEL
ModelVersionStatus.State
  0 UNKNOWN
  10 START
  20 LOADING
  30 AVAILABLE
  40 UNLOADING
  50 END
SamplingConfig.Attributes
  0 ATTR_DEFAULT
  1 ATTR_REQUEST_ORIGIN
  2 ATTR_REQUEST_CRITICALITY
ModelType
  0 MODEL_TYPE_UNSPECIFIED
  1 TENSORFLOW
  2 OTHER
FileSystemStoragePathSourceConfig.VersionPolicy
  0 LATEST_VERSION
  1 ALL_VERSIONS
)";

// `path request response`.
constexpr absl::string_view kMethods = R"(
/tensorflow.serving.PredictionService/Classify ClassificationRequest ClassificationResponse
/tensorflow.serving.PredictionService/Regress RegressionRequest RegressionResponse
/tensorflow.serving.PredictionService/Predict PredictRequest PredictResponse
/tensorflow.serving.PredictionService/MultiInference MultiInferenceRequest MultiInferenceResponse
/tensorflow.serving.PredictionService/GetModelMetadata GetModelMetadataRequest GetModelMetadataResponse
/tensorflow.serving.ModelService/GetModelStatus GetModelStatusRequest GetModelStatusResponse
/tensorflow.serving.ModelService/HandleReloadConfigRequest ReloadConfigRequest ReloadConfigResponse
/tensorflow.serving.SessionService/SessionRun SessionRunRequest SessionRunResponse
)";

// Name -> its lines.
using Table = std::map<std::string, std::set<std::string>>;

Table ParseTable(absl::string_view text) {
  Table table;
  std::set<std::string>* current = nullptr;
  for (absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    if (absl::ConsumePrefix(&line, "  ")) {
      EXPECT_TRUE(current->insert(std::string(line)).second) << "written twice: " << line;
    } else {
      EXPECT_EQ(table.count(std::string(line)), 0u) << "written twice: " << line;
      current = &table[std::string(line)];
    }
  }
  return table;
}

std::string Relative(absl::string_view full_name) {
  if (absl::ConsumePrefix(&full_name, "tensorflow.serving.")) return std::string(full_name);
  if (absl::ConsumePrefix(&full_name, "tensorflow.")) return absl::StrCat("tf.", full_name);
  return std::string(full_name);
}

std::string TypeName(const FieldDescriptor* field) {
  if (field->is_map()) {
    const Descriptor* entry = field->message_type();
    return absl::StrCat("map<", TypeName(entry->map_key()), ",", TypeName(entry->map_value()), ">");
  }
  const std::string type = field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE
                               ? Relative(field->message_type()->full_name())
                           : field->cpp_type() == FieldDescriptor::CPPTYPE_ENUM
                               ? Relative(field->enum_type()->full_name())
                               : std::string(field->type_name());
  return absl::StrCat(field->is_repeated() ? "repeated " : "", type);
}

void AddEnum(const EnumDescriptor* descriptor, Table* enums) {
  std::set<std::string>& lines = (*enums)[Relative(descriptor->full_name())];
  for (int i = 0; i < descriptor->value_count(); ++i) {
    lines.insert(absl::StrCat(descriptor->value(i)->number(), " ", descriptor->value(i)->name()));
  }
}

void AddMessage(const Descriptor* descriptor, Table* messages, Table* enums) {
  if (descriptor->options().map_entry()) return;
  std::set<std::string>& lines = (*messages)[Relative(descriptor->full_name())];
  for (int i = 0; i < descriptor->field_count(); ++i) {
    const FieldDescriptor* field = descriptor->field(i);
    std::string line = absl::StrCat(field->number(), field->has_optional_keyword() ? "? " : " ",
                                    TypeName(field), " ", field->name());
    if (field->real_containing_oneof() != nullptr) {
      absl::StrAppend(&line, " ", field->real_containing_oneof()->name());
    }
    lines.insert(line);
  }
  for (int i = 0; i < descriptor->nested_type_count(); ++i) {
    AddMessage(descriptor->nested_type(i), messages, enums);
  }
  for (int i = 0; i < descriptor->enum_type_count(); ++i) AddEnum(descriptor->enum_type(i), enums);
}

// The files of this folder: those listed, which no other imports, and what they import.
std::vector<const FileDescriptor*> ServingFiles() {
  using namespace ::tensorflow::serving;  // NOLINT: twelve names of one schema
  const auto* const pool = DescriptorPool::generated_pool();
  std::vector<const FileDescriptor*> open = {
      ReloadConfigRequest::descriptor()->file(),
      MonitoringConfig::descriptor()->file(),
      PlatformConfigMap::descriptor()->file(),
      PredictionLog::descriptor()->file(),
      SSLConfig::descriptor()->file(),
      SavedModelBundleSourceAdapterConfig::descriptor()->file(),
      pool->FindFileByName("proto/serving/prediction_service.proto"),
      pool->FindFileByName("proto/serving/model_service.proto"),
  };
  std::set<const FileDescriptor*> found;
  std::vector<const FileDescriptor*> files;
  while (!open.empty()) {
    const FileDescriptor* file = open.back();
    open.pop_back();
    if (file == nullptr) {
      ADD_FAILURE() << "the file of a service is not there";
      continue;
    }
    if (!absl::StartsWith(file->name(), "proto/serving/") || !found.insert(file).second) continue;
    files.push_back(file);
    for (int i = 0; i < file->dependency_count(); ++i) open.push_back(file->dependency(i));
  }
  return files;
}

void ExpectSame(const Table& expected, const Table& actual) {
  for (const auto& [name, lines] : expected) {
    const auto found = actual.find(name);
    if (found == actual.end()) {
      ADD_FAILURE() << "tensorflow.serving." << name << " is missing";
      continue;
    }
    for (const std::string& line : lines) {
      EXPECT_EQ(found->second.count(line), 1u) << name << " lacks: " << line;
    }
    for (const std::string& line : found->second) {
      EXPECT_EQ(lines.count(line), 1u) << name << " has beyond the table: " << line;
    }
  }
  for (const auto& [name, lines] : actual) {
    EXPECT_EQ(expected.count(name), 1u) << "tensorflow.serving." << name << " is not in the table";
  }
}

TEST(ServingDescriptors, EveryFieldAndEnumHasTheNumberTypeAndNameOfTensorFlowServing) {
  Table messages, enums;
  for (const FileDescriptor* file : ServingFiles()) {
    EXPECT_EQ(file->package(), "tensorflow.serving") << file->name();
    EXPECT_EQ(file->syntax(), FileDescriptor::SYNTAX_PROTO3) << file->name();
    EXPECT_TRUE(file->options().cc_enable_arenas()) << file->name();
    for (int i = 0; i < file->message_type_count(); ++i) {
      AddMessage(file->message_type(i), &messages, &enums);
    }
    for (int i = 0; i < file->enum_type_count(); ++i) AddEnum(file->enum_type(i), &enums);
  }
  ExpectSame(ParseTable(kMessages), messages);
  ExpectSame(ParseTable(kEnums), enums);
}

TEST(ServingDescriptors, ExamplesAreLazyAndStatusesKeepTheirNamesInJson) {
  const Descriptor* input = tensorflow::serving::Input::descriptor();
  for (int i = 0; i < input->field_count(); ++i) EXPECT_TRUE(input->field(i)->options().lazy());
  for (const char* name : {"error_code", "error_message"}) {
    const FieldDescriptor* field =
        tensorflow::serving::StatusProto::descriptor()->FindFieldByName(name);
    ASSERT_NE(field, nullptr) << name;
    EXPECT_EQ(field->json_name(), name);
  }
}

TEST(ServingDescriptors, MethodsHaveThePathsThatClientsCall) {
  std::map<std::string, std::string> expected;
  for (absl::string_view line : absl::StrSplit(kMethods, '\n', absl::SkipEmpty())) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ');
    ASSERT_EQ(words.size(), 3u) << line;
    expected[words[0]] = absl::StrCat(words[1], " ", words[2]);
  }
  std::map<std::string, std::string> actual;
  for (const FileDescriptor* file : ServingFiles()) {
    for (int s = 0; s < file->service_count(); ++s) {
      for (int i = 0; i < file->service(s)->method_count(); ++i) {
        const auto* method = file->service(s)->method(i);
        EXPECT_FALSE(method->client_streaming() || method->server_streaming()) << method->name();
        actual[absl::StrCat("/", file->service(s)->full_name(), "/", method->name())] =
            absl::StrCat(Relative(method->input_type()->full_name()), " ",
                         Relative(method->output_type()->full_name()));
      }
    }
  }
  EXPECT_EQ(actual, expected);
  std::set<std::string> paths, constants = {kPredictPath,
                                            kClassifyPath,
                                            kRegressPath,
                                            kMultiInferencePath,
                                            kGetModelMetadataPath,
                                            kGetModelStatusPath,
                                            kHandleReloadConfigRequestPath,
                                            kSessionRunPath};
  for (const auto& [path, types] : expected) paths.insert(path);
  EXPECT_EQ(constants, paths);
}

template <typename M>
void ExpectParses(absl::string_view name, M* message) {
  const std::string path = SharedDataPath(absl::StrCat("serving/", name));
  if (path.empty()) GTEST_SKIP() << "MILLRACE_SHARED has no serving/" << name;
  std::ifstream file(path);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, message)) << path;
}

TEST(ServingDescriptors, ConfigurationFilesOfTensorFlowServingAreRead) {
  tensorflow::serving::ModelServerConfig models;
  ExpectParses("good_model_config.txt", &models);
  if (IsSkipped()) return;
  EXPECT_GT(models.model_config_list().config_size(), 0);
  tensorflow::serving::BatchingParameters batching;
  ExpectParses("batching_config.txt", &batching);
  EXPECT_TRUE(batching.has_max_batch_size());
  tensorflow::serving::MonitoringConfig monitoring;
  ExpectParses("monitoring_config.txt", &monitoring);
  EXPECT_TRUE(monitoring.prometheus_config().enable());
}

}  // namespace
}  // namespace millrace
