// SPDX-License-Identifier: Apache-2.0
#include "tools/model_server_flags.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/file_system.h"
#include "core/logging.h"
#include "core/status.h"
#include "google/protobuf/text_format.h"
#include "net/http/http_server.h"
#include "net/security.h"
#include "proto/serving/ssl_config.pb.h"
#include "runtime/session_config.h"
#include "serving/batching/batch_parameters.h"
#include "serving/batching/batching.h"
#include "serving/model_config.h"
#include "serving/model_versions.h"
#include "serving/monitoring/monitoring_pages.h"
#include "tools/op_library_flag.h"
#include "tools/platform_config.h"

namespace millrace {
namespace {

constexpr int kMaxPort = 65'535;

StatusOr<int64_t> Int64Value(const CommandLine& flags, const std::string& name, int64_t fallback,
                             int64_t least = INT64_MIN) {
  if (!flags.has(name)) return fallback;
  int64_t value;
  if (absl::SimpleAtoi(flags.value(name), &value)) {
    if (value >= least) return value;
    return InvalidArgument("--", name, " must be at least ", least, ", got ", value);
  }
  return InvalidArgument("--", name, " must be an integer, got '", flags.value(name), "'");
}

// The models of a file, whose bytes go to `content`, or the one of the flags.
StatusOr<std::vector<ModelSettings>> ModelsOf(const CommandLine& flags, std::string* content) {
  const std::string file = flags.value("model_config_file");
  if (file.empty()) {
    if (flags.value("model_base_path").empty()) {
      return InvalidArgument("--model_base_path or --model_config_file must be given, got neither");
    }
    ModelSettings model;
    model.name = flags.has("model_name") ? flags.value("model_name") : "default";
    model.base_path = flags.value("model_base_path");
    return std::vector<ModelSettings>{model};
  }
  if (flags.has("model_base_path") || flags.has("model_name")) {
    // As TensorFlow Serving, whose image gives all three.
    LogWarning("--model_name and --model_base_path do not count beside --model_config_file");
  }
  MR_ASSIGN_OR_RETURN(*content, ReadFileToString(FileSystem::Default(), file));
  StatusOr<std::vector<ModelSettings>> models = ReadModelConfig(*content);
  if (!models.ok()) return Prefixed(absl::StrCat("'", file, "'"), models.status());
  return models;
}

// PEM texts in a SSLConfig.
StatusOr<std::shared_ptr<Credentials>> CertificatesOf(const std::string& file) {
  MR_ASSIGN_OR_RETURN(const std::string text, ReadFileToString(FileSystem::Default(), file));
  tensorflow::serving::SSLConfig config;
  if (!google::protobuf::TextFormat::ParseFromString(text, &config)) {
    return InvalidArgument("'", file, "': it must be a ", config.GetTypeName(),
                           " as text, got something else");
  }
  auto credentials = std::make_shared<Credentials>();
  credentials->key = config.server_key();
  credentials->certificate = config.server_cert();
  credentials->ca = config.custom_ca();
  credentials->require_client_certificate = config.client_verify();
  if (credentials->key.empty() || credentials->certificate.empty()) {
    return InvalidArgument("'", file, "': it must have server_key and server_cert, got ",
                           credentials->key.empty() ? "no server_key" : "no server_cert");
  }
  if (credentials->require_client_certificate && credentials->ca.empty()) {
    return InvalidArgument("'", file, "': with client_verify it must have custom_ca, got none");
  }
  return credentials;
}

// Null: anybody may call, without TLS.
StatusOr<std::shared_ptr<const Credentials>> CredentialsOf(const CommandLine& flags) {
  const std::string certificates = flags.value("ssl_config_file");
  const std::string token = flags.value("token_file");
  if (certificates.empty() && token.empty()) return std::shared_ptr<const Credentials>();
  auto credentials = std::make_shared<Credentials>();
  if (!certificates.empty()) {
    MR_ASSIGN_OR_RETURN(credentials, CertificatesOf(certificates));
  }
  if (!token.empty()) {
    MR_ASSIGN_OR_RETURN(const auto read, Credentials::Load({.token_file = token}));
    credentials->token = read->token;
  }
  return std::shared_ptr<const Credentials>(std::move(credentials));
}

// None: requests are not batched.
StatusOr<std::optional<BatchingOptions>> BatchingOf(const CommandLine& flags) {
  const std::string file = flags.value("batching_parameters_file");
  if (!flags.BoolValue("enable_batching", false)) {
    if (file.empty()) return std::optional<BatchingOptions>();
    return InvalidArgument(
        "server_options.batching_parameters_file is set without setting "
        "server_options.enable_batching to true.");
  }
  BatchingOptions batching;
  batching.per_model = flags.BoolValue("enable_per_model_batching_parameters", false);
  if (!file.empty()) {
    MR_ASSIGN_OR_RETURN(const std::string text, ReadFileToString(FileSystem::Default(), file));
    StatusOr<BatchParameters> parameters = ReadBatchParameters(text);
    if (!parameters.ok()) return Prefixed(absl::StrCat("'", file, "'"), parameters.status());
    batching.parameters = *std::move(parameters);
  }
  return std::optional<BatchingOptions>(std::move(batching));
}

Status ReadMonitoring(const CommandLine& flags, ModelServerMonitoring* monitoring) {
  const std::string file = flags.value("monitoring_config_file");
  if (!file.empty()) {
    MR_ASSIGN_OR_RETURN(const std::string text, ReadFileToString(FileSystem::Default(), file));
    StatusOr<std::string> path = ReadMonitoringConfig(text);
    if (!path.ok()) return Prefixed(absl::StrCat("'", file, "'"), path.status());
    monitoring->metrics_path = *std::move(path);
  }
  monitoring->address = flags.value("monitoring_address");
  monitoring->status_pages = flags.BoolValue("enable_status_pages", true);
  const std::string sampling = flags.value("access_log_sampling");
  double* const rate = &monitoring->access_log_sampling;
  if (!sampling.empty() && !(absl::SimpleAtod(sampling, rate) && *rate >= 0 && *rate <= 1)) {
    return InvalidArgument("--access_log_sampling must be 0 to 1, got '", sampling, "'");
  }
  MR_ASSIGN_OR_RETURN(const int log_files, flags.IntValue("request_log_files", 10, 1, 1'000'000));
  MR_ASSIGN_OR_RETURN(const int log_mb, flags.IntValue("request_log_file_mb", 64, 1, 1'000'000));
  monitoring->request_log_options.max_files = log_files;
  monitoring->request_log_options.max_file_bytes = int64_t{log_mb} << 20;
  return absl::OkStatus();
}

// "a=1,b=2".
StatusOr<std::vector<std::pair<std::string, std::string>>> ChannelArguments(
    const std::string& text) {
  std::vector<std::pair<std::string, std::string>> arguments;
  for (const absl::string_view one : absl::StrSplit(text, ',', absl::SkipEmpty())) {
    const std::pair<std::string, std::string> argument =
        absl::StrSplit(one, absl::MaxSplits('=', 1));
    if (argument.first.empty() || !absl::StrContains(one, '=')) {
      return InvalidArgument("--grpc_channel_arguments must be name=value,..., got '", text, "'");
    }
    arguments.push_back(argument);
  }
  return arguments;
}

Status ReadFronts(const CommandLine& flags, ModelServerOptions* options) {
  MR_ASSIGN_OR_RETURN(const int port, flags.IntValue("port", 8500, 0, kMaxPort));
  MR_ASSIGN_OR_RETURN(const int rest_port, flags.IntValue("rest_api_port", 0, 0, kMaxPort));
  std::vector<std::string> grpc;
  if (port > 0) grpc.push_back(absl::StrCat("0.0.0.0:", port));
  if (flags.has("grpc_socket_path")) {
    grpc.push_back(absl::StrCat("unix:", flags.value("grpc_socket_path")));
  }
  if (rest_port > 0) options->rest_addresses.push_back(absl::StrCat("0.0.0.0:", rest_port));
  if (flags.has("rest_socket_path")) {
    options->rest_addresses.push_back(absl::StrCat("unix:", flags.value("rest_socket_path")));
  }
  if (grpc.empty() && options->rest_addresses.empty()) {
    return InvalidArgument("--port or --rest_api_port must be above 0, got 0 for both");
  }
  if (!grpc.empty()) {
    options->grpc_address = grpc[0];
    options->more_grpc_addresses.assign(grpc.begin() + 1, grpc.end());
  }
  MR_ASSIGN_OR_RETURN(options->grpc_channel_arguments,
                      ChannelArguments(flags.value("grpc_channel_arguments")));

  MR_ASSIGN_OR_RETURN(options->max_running_requests,
                      flags.IntValue("grpc_max_threads", 64, 1, 10'000));
  MR_ASSIGN_OR_RETURN(options->lanes.num_threads,
                      flags.IntValue("rest_api_num_threads", 0, 0, 1024));
  if (flags.has("max_waiting_requests")) {
    MR_ASSIGN_OR_RETURN(options->max_waiting_requests,
                        flags.IntValue("max_waiting_requests", 0, 0, 1'000'000));
    options->lanes.max_waiting = options->max_waiting_requests;
  }
  MR_ASSIGN_OR_RETURN(const int rest_timeout,
                      flags.IntValue("rest_api_timeout_in_ms", 30'000, 1, INT32_MAX));
  options->rest.timeout = absl::Milliseconds(rest_timeout);
  options->rest.cors = flags.BoolValue("rest_api_enable_cors_support", false);
  options->enable_health = flags.BoolValue("enable_grpc_healthcheck_service", true);
  options->enable_session_run = flags.BoolValue("enable_session_run", false);
  MR_ASSIGN_OR_RETURN(options->credentials, CredentialsOf(flags));

  // Bounds of REST.
  HttpServerOptions& http = options->http;
  MR_ASSIGN_OR_RETURN(http.max_body_bytes,
                      Int64Value(flags, "rest_max_body_bytes", http.max_body_bytes, 1));
  constexpr int64_t kMostJson = 200'000'000;  // the reader's own bound (JsonLimits)
  if (http.max_body_bytes > kMostJson) {
    return InvalidArgument("--rest_max_body_bytes must be at most ", kMostJson, ", got ",
                           http.max_body_bytes);
  }
  options->rest.limits.max_body_bytes = http.max_body_bytes;
  MR_ASSIGN_OR_RETURN(http.max_bytes_of_bodies,
                      Int64Value(flags, "rest_max_bytes_of_bodies", http.max_bytes_of_bodies, 1));
  MR_ASSIGN_OR_RETURN(http.max_header_bytes,
                      Int64Value(flags, "rest_max_header_bytes", http.max_header_bytes, 1));
  MR_ASSIGN_OR_RETURN(http.max_connections,
                      flags.IntValue("rest_max_connections", http.max_connections, 1, 1'000'000));
  MR_ASSIGN_OR_RETURN(
      http.max_connections_of_address,
      flags.IntValue("rest_max_connections_of_client", http.max_connections, 1, 1'000'000));
  MR_ASSIGN_OR_RETURN(
      const int idle,
      flags.IntValue("rest_idle_seconds", static_cast<int>(absl::ToInt64Seconds(http.idle_time)), 1,
                     1'000'000));
  http.idle_time = absl::Seconds(idle);
  return absl::OkStatus();
}

Status ReadVersions(const CommandLine& flags, ModelVersions::Options* versions) {
  MR_ASSIGN_OR_RETURN(const int64_t poll, Int64Value(flags, "file_system_poll_wait_seconds", 1));
  versions->poll_period = absl::Seconds(std::max(poll, int64_t{0}));
  MR_ASSIGN_OR_RETURN(versions->plan.max_retries,
                      flags.IntValue("max_num_load_retries", 5, 0, INT32_MAX));
  MR_ASSIGN_OR_RETURN(const int64_t interval,
                      Int64Value(flags, "load_retry_interval_micros", 60'000'000));
  versions->plan.retry_interval = absl::Microseconds(interval);
  MR_ASSIGN_OR_RETURN(const int load_threads, flags.IntValue("num_load_threads", 0, 0, 1000));
  if (load_threads > 0) versions->plan.max_loads = load_threads;
  MR_ASSIGN_OR_RETURN(const int load_seconds,
                      flags.IntValue("max_load_seconds", 3600, 0, INT32_MAX));
  versions->plan.max_load_time =
      load_seconds == 0 ? absl::InfiniteDuration() : absl::Seconds(load_seconds);
  const std::string share = flags.value("load_cpu_share");
  constexpr double kLeastShare = 0.01;
  double* const load_share = &versions->load_cpu_share;
  if (!share.empty() &&
      !(absl::SimpleAtod(share, load_share) && *load_share >= kLeastShare && *load_share <= 1)) {
    return InvalidArgument("--load_cpu_share must be ", kLeastShare, " to 1, got '", share, "'");
  }
  versions->load_on_demand = flags.BoolValue("load_on_demand", false);
  MR_ASSIGN_OR_RETURN(const int idle, flags.IntValue("idle_unload_seconds", 0, 0, INT32_MAX));
  if (idle > 0) versions->plan.idle_unload = absl::Seconds(idle);
  MR_ASSIGN_OR_RETURN(versions->plan.memory_limit, Int64Value(flags, "model_memory_limit", 0, 0));
  versions->source.trust_new_versions = flags.BoolValue("trust_new_versions", false);
  versions->allow_labels_of_unavailable =
      flags.BoolValue("allow_version_labels_for_unavailable_models", false);

  return absl::OkStatus();
}

// Of TensorFlow Serving, for commands that have them: about what is not here, or is so anyway.
constexpr const char* kIgnored[] = {"num_unload_threads",
                                    "per_process_gpu_memory_fraction",
                                    "num_tflite_pools",
                                    "num_tflite_interpreters_per_pool",
                                    "thread_pool_factory_config_file",
                                    "mixed_precision"};
constexpr const char* kIgnoredSwitches[] = {"flush_filesystem_caches",
                                            "remove_unused_fields_from_bundle_metagraph",
                                            "enable_profiler",
                                            "prefer_tflite_model",
                                            "xla_cpu_compilation_enabled",
                                            "skip_initialize_tpu",
                                            "use_saved_model"};
constexpr char kIgnoredHelp[] = "is taken and does nothing";

void WarnOfIgnored(const CommandLine& flags) {
  std::vector<std::string> given;
  const auto look = [&](const char* name) {
    if (flags.has(name)) given.push_back(absl::StrCat("--", name));
  };
  for (const char* name : kIgnored) look(name);
  for (const char* name : kIgnoredSwitches) look(name);
  if (given.empty()) return;
  LogWarning("These flags of TensorFlow Serving do nothing here: ", absl::StrJoin(given, ", "));
}

// Which the file takes the place of.
void WarnBesidePlatform(const CommandLine& flags) {
  std::vector<std::string> given;
  for (const char* const name :
       {"tensorflow_session_config_file", "tensorflow_session_parallelism",
        "tensorflow_intra_op_parallelism", "tensorflow_inter_op_parallelism", "saved_model_tags",
        "enable_batching", "batching_parameters_file", "enable_per_model_batching_parameters",
        "enable_model_warmup", "num_request_iterations_for_warmup"}) {
    if (flags.has(name)) given.push_back(absl::StrCat("--", name));
  }
  if (!flags.has("platform_config_file") || given.empty()) return;
  LogWarning("These flags do not count beside --platform_config_file: ",
             absl::StrJoin(given, ", "));
}

// What a server with a token or TLS does not do.
void WarnOfReach(const ModelServerOptions& options) {
  if (options.credentials == nullptr) return;
  const bool has_token = !options.credentials->token.empty();
  if (has_token && options.rest.cors) {
    LogWarning(
        "--rest_api_enable_cors_support does nothing beside --token_file: what browsers ask first "
        "shows no token, and is refused");
  }
  if (!options.monitoring.address.empty() && options.credentials->is_tls()) {
    LogWarning("The port of --monitoring_address has no TLS",
               has_token ? ": callers show it their token in plain text" : "");
  }
}

// The bytes of the file that a flag names; what is wrong with them gets its name.
template <typename Read>
Status ReadFlagFile(const CommandLine& flags, const std::string& name, const Read& read) {
  const std::string file = flags.value(name);
  if (file.empty()) return absl::OkStatus();
  MR_ASSIGN_OR_RETURN(const std::string text, ReadFileToString(FileSystem::Default(), file));
  return Prefixed(absl::StrCat("'", file, "'"), read(text));
}

// Threads of a model's session; the process's own otherwise. The file counts where no flag does.
Status ReadSession(const CommandLine& flags, SessionConfig* config) {
  MR_RETURN_IF_ERROR(
      ReadFlagFile(flags, "tensorflow_session_config_file", [&](const std::string& text) -> Status {
        MR_ASSIGN_OR_RETURN(*config, ReadSessionConfig(text));
        return absl::OkStatus();
      }));
  MR_ASSIGN_OR_RETURN(const int both, flags.IntValue("tensorflow_session_parallelism", 0, 0, 1024));
  MR_ASSIGN_OR_RETURN(const int intra,
                      flags.IntValue("tensorflow_intra_op_parallelism", 0, 0, 1024));
  MR_ASSIGN_OR_RETURN(const int inter,
                      flags.IntValue("tensorflow_inter_op_parallelism", 0, 0, 1024));
  if (both > 0 && (intra > 0 || inter > 0)) {
    return InvalidArgument(
        "--tensorflow_session_parallelism must be without --tensorflow_intra_op_parallelism and "
        "--tensorflow_inter_op_parallelism, got both");
  }
  if (both + intra > 0) config->intra_op_parallelism_threads = both > 0 ? both : intra;
  if (both + inter > 0) config->inter_op_parallelism_threads = both > 0 ? both : inter;
  return absl::OkStatus();
}

FlagSpec Number(const char* name, const char* help) {
  return {.name = name, .value = "N", .help = help};
}
FlagSpec Switch(const char* name, const char* help) {
  return {.name = name, .help = help, .boolean = true};
}

// How it is reached, by whom, and what it tells.
std::vector<FlagSpec> FlagsOfReachAndLogs() {
  return {
      Number("rest_api_timeout_in_ms", "of a REST request (30000)"),
      Switch("rest_api_enable_cors_support", "answers browsers of other origins"),
      {.name = "ssl_config_file", .value = "FILE", .help = "an SSLConfig as text: TLS"},
      Switch("use_alts_credentials", "is refused when true: there is no ALTS"),
      {.name = "platform_config_file",
       .value = "FILE",
       .help = "a PlatformConfigMap as text; flags about session, batching, tags and warm-up "
               "do not count beside it"},
      {.name = "token_file",
       .value = "FILE",
       .help = "a secret that each caller must show, by gRPC and REST"},
      {.name = "monitoring_config_file",
       .value = "FILE",
       .help = "a MonitoringConfig as text: metrics for Prometheus on the REST port"},
      {.name = "monitoring_address",
       .value = "HOST:PORT",
       .help = "a port for metrics and status alone"},
      Switch("enable_status_pages", "/millrace/status and pages of models by REST (true)"),
      Number("access_log_sampling", "requests that get a line in the log, 0 to 1 (0)"),
      Number("request_log_files", "of a logging_config's prefix that stay (10)"),
      Number("request_log_file_mb", "of each of them (64)"),
      Number("not_ready_seconds", "from SIGTERM on served, but not ready for probes (0)"),
      Number("drain_seconds", "for requests that run at SIGTERM, after that time (30)"),
  };
}

}  // namespace

StatusOr<ModelServerFlags> ReadModelServerFlags(const CommandLine& flags) {
  ModelServerFlags read;
  ModelServerOptions& options = read.options;
  read.config_file = flags.value("model_config_file");
  MR_ASSIGN_OR_RETURN(options.models, ModelsOf(flags, &read.config_content));
  MR_ASSIGN_OR_RETURN(const int config_period,
                      flags.IntValue("model_config_file_poll_wait_seconds", 0, 0, INT32_MAX));
  if (config_period > 0) read.config_period = absl::Seconds(config_period);
  MR_ASSIGN_OR_RETURN(const int drain, flags.IntValue("drain_seconds", 30, 0, 86'400));
  read.drain = absl::Seconds(drain);
  MR_ASSIGN_OR_RETURN(const int not_ready, flags.IntValue("not_ready_seconds", 0, 0, 86'400));
  read.not_ready = absl::Seconds(not_ready);
  MR_RETURN_IF_ERROR(ReadFronts(flags, &options));
  MR_RETURN_IF_ERROR(ReadVersions(flags, &options.versions));
  options.require_all_models = flags.BoolValue("require_all_models", false);
  options.listen_early = flags.BoolValue("listen_early", false);
  options.enable_warm_up = flags.BoolValue("enable_model_warmup", true);
  MR_ASSIGN_OR_RETURN(const int iterations,
                      flags.IntValue("num_request_iterations_for_warmup", 1, INT32_MIN, INT32_MAX));
  options.warm_up_iterations = std::max(iterations, 1);  // as there
  MR_ASSIGN_OR_RETURN(options.warm_up_from_request_log,
                      flags.IntValue("warmup_from_request_log", 0, 0, 1'000'000));
  MR_ASSIGN_OR_RETURN(options.batching, BatchingOf(flags));
  options.model.serialize_as_tensor_content =
      flags.BoolValue("enable_serialization_as_tensor_content", false);
  options.model.check_method_names = flags.BoolValue("enable_signature_method_name_check", false);
  if (flags.has("saved_model_tags")) {
    options.model.load.tags =
        absl::StrSplit(flags.value("saved_model_tags"), ',', absl::SkipEmpty());
  }
  MR_RETURN_IF_ERROR(ReadSession(flags, &options.model.load.session.config));
  MR_RETURN_IF_ERROR(ReadFlagFile(flags, "platform_config_file", [&](const std::string& text) {
    return ReadPlatformConfig(text, &options);
  }));
  MR_RETURN_IF_ERROR(ReadMonitoring(flags, &options.monitoring));
  if (flags.BoolValue("use_alts_credentials", false)) {
    return InvalidArgument(
        "--use_alts_credentials must be false, got true; --ssl_config_file has TLS");
  }
  WarnOfIgnored(flags);
  WarnBesidePlatform(flags);
  WarnOfReach(options);
  return read;
}

ProgramHelp ModelServerHelp() {
  ProgramHelp help = {
      .name = "model_server",
      .about =
          "Serves exported models over gRPC and REST, for the clients of TensorFlow Serving.\n"
          "A model is a directory of versions, each a SavedModel in a directory whose name is "
          "a number.",
      .flags = {
          Number("port", "of gRPC (8500); 0: none"),
          Number("rest_api_port", "of REST (0: none)"),
          {.name = "grpc_socket_path", .value = "FILE", .help = "a unix socket of gRPC, too"},
          {.name = "rest_socket_path", .value = "FILE", .help = "a unix socket of REST, too"},
          {.name = "grpc_channel_arguments",
           .value = "NAME=VALUE,...",
           .help = "of gRPC's server, as grpc.max_connection_age_ms=2000"},
          {.name = "model_name", .value = "NAME", .help = "of the model (default)"},
          {.name = "model_base_path",
           .value = "DIR",
           .help = "the versions of the model, absolute"},
          {.name = "model_config_file",
           .value = "FILE",
           .help = "several models: a ModelServerConfig as text"},
          Number("model_config_file_poll_wait_seconds",
                 "between two looks into that file (0: it is read once)"),
          Number("file_system_poll_wait_seconds",
                 "between two looks for versions (1); 0 or less: once"),
          Number("max_num_load_retries", "of a version that does not load (5)"),
          Number("load_retry_interval_micros", "between them (60000000)"),
          Number("num_load_threads", "versions that load at a time (2)"),
          Number("max_load_seconds", "a load that takes longer has failed (3600); 0: none does"),
          Number("load_cpu_share",
                 "of one core, for all loads while a model serves (0.15); 1: they are not paced"),
          Switch("load_on_demand", "a model loads when the first request asks for it"),
          Number("idle_unload_seconds",
                 "a model without a request for so long unloads until one comes (0: none does)"),
          Number("model_memory_limit",
                 "bytes of loaded models (0: any); those used least recently make room; with "
                 "--load_on_demand"),
          Switch("allow_version_labels_for_unavailable_models",
                 "new labels may name versions that are not available"),
          Switch("require_all_models", "ends when one of several models is not available at start"),
          Switch("listen_early", "opens the ports before the models are available"),
          Switch("trust_new_versions",
                 "takes a version as soon as its directory is there, as TensorFlow Serving does"),
          Switch("enable_model_warmup", "runs the warm-up requests of a version first (true)"),
          Number("num_request_iterations_for_warmup", "runs of each warm-up request (1)"),
          Number("warmup_from_request_log",
                 "of a model's last logged requests are run on a new version first (0)"),
          Switch("enable_batching",
                 "runs requests that wait together; without a file, nothing waits for others"),
          {.name = "batching_parameters_file",
           .value = "FILE",
           .help = "a BatchingParameters as text: batches as TensorFlow Serving makes them"},
          Switch("enable_per_model_batching_parameters",
                 "batches versions that have batching_params.pbtxt, by that file"),
          {.name = "saved_model_tags",
           .value = "TAGS",
           .help = "of the meta graph (serve); empty: of the one without tags"},
          Switch("enable_serialization_as_tensor_content", "replies carry tensors as raw bytes"),
          Switch("enable_signature_method_name_check",
                 "classify and regress ask for signatures of their method"),
          Number("grpc_max_threads", "gRPC requests that run at a time (64)"),
          Switch("enable_grpc_healthcheck_service", "answers probes of grpc.health.v1 (true)"),
          Number("rest_api_num_threads", "REST requests that run at a time (four per core)"),
          Number("max_waiting_requests",
                 "of gRPC, and of REST, beyond those that run (20000, 1000)"),
          Number("rest_max_body_bytes", "of a request, and of what gzip makes of it (134217728)"),
          Number("rest_max_bytes_of_bodies", "of all requests together (2147483648)"),
          Number("rest_max_header_bytes", "of a request (16384)"),
          Number("rest_max_connections", "at a time (10000)"),
          Number("rest_max_connections_of_client", "of one IP address (as many)"),
          Number("rest_idle_seconds", "of a connection without a request (120)"),
          Switch("enable_session_run",
                 "SessionService: who may call it may run each op, as those that write files"),
          {.name = "tensorflow_session_config_file",
           .value = "FILE",
           .help = "a ConfigProto as text, of a model's session; the next three count before it"},
          Number("tensorflow_session_parallelism",
                 "threads of a model's steps (0: of the process)"),
          Number("tensorflow_intra_op_parallelism", "the same, of one node"),
          Number("tensorflow_inter_op_parallelism", "the same, of several nodes"),
      }};
  for (FlagSpec& flag : FlagsOfReachAndLogs()) help.flags.push_back(std::move(flag));
  for (const char* name : kIgnored) {
    help.flags.push_back({.name = name, .value = "ANY", .help = kIgnoredHelp});
  }
  for (const char* name : kIgnoredSwitches) help.flags.push_back(Switch(name, kIgnoredHelp));
  help.flags.push_back(OpLibraryFlag());
  return help;
}

}  // namespace millrace
