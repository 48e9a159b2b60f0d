// SPDX-License-Identifier: Apache-2.0
#include "tools/model_server_flags.h"

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "tools/command_line.h"

// covers: serving: model_server takes each flag of TensorFlow Serving: those that mean nothing here
//   with a warning, ALTS, which would be TLS, not at all; session and platform configurations count

namespace millrace {
namespace {

class ModelServerFlagsTest : public ::testing::Test {
 protected:
  ModelServerFlagsTest()
      : dir_(JoinPath(::testing::TempDir(), "model_server_flags_" + RandomHexName())) {}
  ~ModelServerFlagsTest() override { FileSystem::Posix()->RecursivelyDelete(dir_).IgnoreError(); }
  void SetUp() override { ASSERT_OK(FileSystem::Posix()->RecursivelyCreateDirectory(dir_)); }

  std::string File(const std::string& name, const std::string& text) {
    const std::string path = JoinPath(dir_, name);
    EXPECT_OK(WriteFileAtomically(FileSystem::Posix(), path, text));
    return path;
  }
  // With a model.
  static StatusOr<ModelServerFlags> Read(std::vector<std::string> args) {
    args.push_back("--model_base_path=/models/m");
    MR_ASSIGN_OR_RETURN(const CommandLine flags, CommandLine::Parse(ModelServerHelp().flags, args));
    return ReadModelServerFlags(flags);
  }
  static Status Refused(const std::vector<std::string>& args) { return Read(args).status(); }

  const std::string dir_;
};

TEST_F(ModelServerFlagsTest, DefaultsAreTensorFlowServings) {
  ASSERT_OK_AND_ASSIGN(const ModelServerFlags read, Read({}));
  const ModelServerOptions& options = read.options;
  EXPECT_EQ(options.grpc_address, "0.0.0.0:8500");
  EXPECT_TRUE(options.rest_addresses.empty());
  ASSERT_EQ(options.models.size(), 1u);
  EXPECT_EQ(options.models[0].name, "default");
  EXPECT_EQ(options.rest.timeout, absl::Seconds(30));
  EXPECT_EQ(options.versions.plan.max_retries, 5);
  EXPECT_EQ(options.versions.plan.retry_interval, absl::Seconds(60));
  EXPECT_EQ(options.versions.poll_period, absl::Seconds(1));
  EXPECT_TRUE(options.enable_warm_up);
  EXPECT_EQ(options.warm_up_iterations, 1);
  EXPECT_EQ(options.warm_up_from_request_log, 0);
  EXPECT_FALSE(options.batching.has_value());
  EXPECT_EQ(options.credentials, nullptr);
}

// As scripts write them: with and without values.
TEST_F(ModelServerFlagsTest, EachFlagOfTensorFlowServingIsTaken) {
  const std::string monitoring = File("monitoring", "prometheus_config { enable: true }");
  const std::string batching = File("batching", "max_batch_size { value: 8 }");
  const std::string session = File("session", "inter_op_parallelism_threads: 3");
  EXPECT_OK(Refused({
      "--port=8500",
      "--grpc_socket_path=/tmp/s",
      "--rest_api_port=8501",
      "--rest_api_num_threads=4",
      "--rest_api_timeout_in_ms=100",
      "--rest_api_enable_cors_support",
      "--enable_batching",
      "--allow_version_labels_for_unavailable_models=true",
      absl::StrCat("--batching_parameters_file=", batching),
      "--enable_per_model_batching_parameters=false",
      "--model_config_file_poll_wait_seconds=0",
      "--model_name=m",
      "--num_load_threads=1",
      "--num_unload_threads=1",
      "--max_num_load_retries=0",
      "--load_retry_interval_micros=-1",
      "--file_system_poll_wait_seconds=-1",
      "--flush_filesystem_caches",
      absl::StrCat("--tensorflow_session_config_file=", session),
      "--tensorflow_intra_op_parallelism=2",
      "--tensorflow_inter_op_parallelism=2",
      "--use_alts_credentials=false",
      "--per_process_gpu_memory_fraction=0.5",
      "--saved_model_tags=serve",
      "--grpc_channel_arguments=grpc.max_connection_age_ms=2000",
      "--grpc_max_threads=8",
      "--enable_model_warmup=1",
      "--num_request_iterations_for_warmup=0",
      absl::StrCat("--monitoring_config_file=", monitoring),
      "--remove_unused_fields_from_bundle_metagraph=true",
      "--prefer_tflite_model",
      "--num_tflite_pools=1",
      "--num_tflite_interpreters_per_pool=1",
      "--enable_signature_method_name_check",
      "--xla_cpu_compilation_enabled",
      "--enable_profiler",
      "--thread_pool_factory_config_file=/etc/pools",
      "--mixed_precision=bfloat16",
      "--skip_initialize_tpu=true",
      "--enable_grpc_healthcheck_service",
      "--enable_serialization_as_tensor_content=true",
      "--use_saved_model=true",
  }));
  EXPECT_OK(Refused({"--tensorflow_session_parallelism=2"}));
}

TEST_F(ModelServerFlagsTest, ALoadHasAShareOfACore) {
  ASSERT_OK_AND_ASSIGN(const ModelServerFlags plain, Read({}));
  EXPECT_EQ(plain.options.versions.load_cpu_share, 0.15);
  ASSERT_OK_AND_ASSIGN(const ModelServerFlags half, Read({"--load_cpu_share=0.5"}));
  EXPECT_EQ(half.options.versions.load_cpu_share, 0.5);
  for (const char* wrong : {"0", "-1", "1.01", "nan", "much"}) {
    EXPECT_STATUS(Refused({absl::StrCat("--load_cpu_share=", wrong)}),
                  absl::StatusCode::kInvalidArgument, "--load_cpu_share must be 0.01 to 1, got '");
  }
}

TEST_F(ModelServerFlagsTest, AltsIsRefused) {
  EXPECT_STATUS(Refused({"--use_alts_credentials"}), absl::StatusCode::kInvalidArgument,
                "--use_alts_credentials must be false, got true");
}

TEST_F(ModelServerFlagsTest, FlagsCountBeforeTheFileOfTheSession) {
  const std::string file =
      File("session", "intra_op_parallelism_threads: 3 inter_op_parallelism_threads: 4");
  const std::string flag = absl::StrCat("--tensorflow_session_config_file=", file);
  ASSERT_OK_AND_ASSIGN(const ModelServerFlags by_file, Read({flag}));
  EXPECT_EQ(by_file.options.model.load.session.config.intra_op_parallelism_threads, 3);
  EXPECT_EQ(by_file.options.model.load.session.config.inter_op_parallelism_threads, 4);
  ASSERT_OK_AND_ASSIGN(const ModelServerFlags by_both,
                       Read({flag, "--tensorflow_intra_op_parallelism=1"}));
  EXPECT_EQ(by_both.options.model.load.session.config.intra_op_parallelism_threads, 1);
  EXPECT_EQ(by_both.options.model.load.session.config.inter_op_parallelism_threads, 4);
  const std::string bad = File("bad", "no_such_field: 1");
  EXPECT_STATUS(Refused({absl::StrCat("--tensorflow_session_config_file=", bad)}),
                absl::StatusCode::kInvalidArgument,
                absl::StrCat("'", bad, "': it must be a tensorflow.ConfigProto as text"));
}

TEST_F(ModelServerFlagsTest, APlatformConfigTakesThePlaceOfFlags) {
  const auto with = [&](const std::string& platform, const std::string& bundle) {
    return absl::StrCat(
        "--platform_config_file=",
        File("platform", absl::StrCat("platform_configs { key: '", platform,
                                      "' value { source_adapter_config { "
                                      "[type.googleapis.com/tensorflow.serving."
                                      "SavedModelBundleSourceAdapterConfig] { legacy_config { ",
                                      bundle, " } } } } }")));
  };
  ASSERT_OK_AND_ASSIGN(
      const ModelServerFlags read,
      Read({with("tensorflow",
                 "session_config { intra_op_parallelism_threads: 2 } saved_model_tags: 'fast' "
                 "batching_parameters { max_batch_size { value: 16 } } enable_model_warmup: true "
                 "model_warmup_options { num_request_iterations { value: 3 } }"),
            "--tensorflow_intra_op_parallelism=7", "--saved_model_tags=slow"}));
  const ModelServerOptions& options = read.options;
  EXPECT_EQ(options.model.load.session.config.intra_op_parallelism_threads, 2);
  EXPECT_EQ(options.model.load.tags, std::vector<std::string>{"fast"});
  ASSERT_TRUE(options.batching.has_value());
  ASSERT_TRUE(options.batching->parameters.has_value());
  EXPECT_EQ(options.batching->parameters->max_batch_size, 16);
  EXPECT_TRUE(options.enable_warm_up);
  EXPECT_EQ(options.warm_up_iterations, 3);

  // As there: what it does not say is off.
  ASSERT_OK_AND_ASSIGN(const ModelServerFlags empty,
                       Read({with("tensorflow", ""), "--enable_batching"}));
  EXPECT_FALSE(empty.options.batching.has_value());
  EXPECT_FALSE(empty.options.enable_warm_up);
  EXPECT_EQ(empty.options.model.load.tags, std::vector<std::string>{"serve"});

  EXPECT_STATUS(Refused({with("other", "")}), absl::StatusCode::kInvalidArgument,
                "must be of the platform \"tensorflow\", got \"other\"");
  EXPECT_STATUS(Refused({with("tensorflow", "session_target: 'grpc://a:1'")}),
                absl::StatusCode::kUnimplemented, "session_target must be empty");
  EXPECT_STATUS(Refused({absl::StrCat("--platform_config_file=", File("none", ""))}),
                absl::StatusCode::kInvalidArgument, "got none");
  EXPECT_STATUS(Refused({with("tensorflow", "experimental_fixed_input_tensors { name: 'a' }")}),
                absl::StatusCode::kUnimplemented, "must be empty, got 1");

  // What does not count is in the log.
  ::testing::internal::CaptureStderr();
  EXPECT_OK(Refused({with("tensorflow", "enable_session_metadata: true"), "--enable_batching",
                     "--saved_model_tags=slow"}));
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_TRUE(absl::StrContains(log, "do nothing here: enable_session_metadata\n")) << log;
  EXPECT_TRUE(absl::StrContains(
      log, "do not count beside --platform_config_file: --saved_model_tags, --enable_batching\n"))
      << log;
}

TEST_F(ModelServerFlagsTest, BoundsOfBytesAreNotNegative) {
  for (const char* const name :
       {"rest_max_body_bytes", "rest_max_bytes_of_bodies", "rest_max_header_bytes"}) {
    EXPECT_STATUS(Refused({absl::StrCat("--", name, "=-1")}), absl::StatusCode::kInvalidArgument,
                  absl::StrCat("--", name, " must be at least 1, got -1"));
  }
  EXPECT_STATUS(Refused({"--model_memory_limit=-1"}), absl::StatusCode::kInvalidArgument,
                "must be at least 0, got -1");
}

TEST_F(ModelServerFlagsTest, WhatATokenAndTlsDoNotCoverIsInTheLog) {
  const std::string secret = File("secret", "a-token-of-some-length-01234");
  std::filesystem::permissions(secret, std::filesystem::perms::owner_read);
  const std::string token = absl::StrCat("--token_file=", secret);
  const std::string ssl =
      absl::StrCat("--ssl_config_file=", File("ssl", "server_key: 'k' server_cert: 'c'"));
  const auto log_of = [](const std::vector<std::string>& args) {
    ::testing::internal::CaptureStderr();
    EXPECT_OK(Refused(args));
    return ::testing::internal::GetCapturedStderr();
  };
  std::string log = log_of({token, "--monitoring_address=:1"});
  EXPECT_FALSE(absl::StrContains(log, "has no TLS")) << log;
  log = log_of({ssl, "--rest_api_enable_cors_support"});
  EXPECT_FALSE(absl::StrContains(log, "does nothing")) << log;
  log = log_of({token, "--rest_api_enable_cors_support"});
  EXPECT_TRUE(absl::StrContains(log, "does nothing beside --token_file")) << log;
  log = log_of({token, ssl, "--monitoring_address=:1"});
  EXPECT_TRUE(absl::StrContains(log, "has no TLS: callers show it their token in plain text"))
      << log;
}

TEST_F(ModelServerFlagsTest, ATokenIsForBothFronts) {
  const std::string file = File("token", "a-token-of-some-length-01234\n");
  std::filesystem::permissions(file, std::filesystem::perms::owner_read);
  ASSERT_OK_AND_ASSIGN(const ModelServerFlags read, Read({absl::StrCat("--token_file=", file)}));
  ASSERT_NE(read.options.credentials, nullptr);
  EXPECT_EQ(read.options.credentials->token, "a-token-of-some-length-01234");
  EXPECT_FALSE(read.options.credentials->is_tls());
  std::filesystem::permissions(file, std::filesystem::perms::others_read,
                               std::filesystem::perm_options::add);
  EXPECT_STATUS(Refused({absl::StrCat("--token_file=", file)}),
                absl::StatusCode::kFailedPrecondition, "must be for its owner alone");
}

TEST_F(ModelServerFlagsTest, LoggedRequestsToWarmUpWith) {
  ASSERT_OK_AND_ASSIGN(const ModelServerFlags read, Read({"--warmup_from_request_log=50"}));
  EXPECT_EQ(read.options.warm_up_from_request_log, 50);
  EXPECT_STATUS(Refused({"--warmup_from_request_log=-1"}), absl::StatusCode::kInvalidArgument,
                "warmup_from_request_log");
}

}  // namespace
}  // namespace millrace
