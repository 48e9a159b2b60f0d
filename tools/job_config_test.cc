// SPDX-License-Identifier: Apache-2.0
#include "tools/job_config.h"

#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/testing/tensor_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

// covers: article 0-33: STANDARD_1 is a master, four workers and three parameter servers
// covers: article 0-34: tiers and machine types with a GPU are refused, and why; own counts
// covers: article 2-27: config.yaml: the scale tier, counts and arguments of a job
// covers: programs: a job's YAML file: mistakes have line, column, key and value; one of a stranger
//   takes bounded memory and never crashes

namespace millrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

StatusOr<JobConfig> Parse(absl::string_view text) { return ParseJobConfig(text, "config.yaml"); }

// "STANDARD_1: master, 4 workers, 3 ps".
std::string TextOf(const StatusOr<JobTasks>& tasks) {
  if (!tasks.ok()) return std::string(tasks.status().message());
  return absl::StrCat(tasks->tier, ": ", tasks->chief, ", ", tasks->workers, " workers, ",
                      tasks->ps, " ps", tasks->evaluator ? ", evaluator" : "");
}

TEST(JobConfigTest, TheArticlesFileAsksForStandard1) {
  ASSERT_OK_AND_ASSIGN(const JobConfig config, Parse(R"(trainingInput:
  # Use a cluster with many workers and a few parameter servers.
  scaleTier: STANDARD_1
)"));
  EXPECT_EQ(TextOf(TasksOf(config)), "STANDARD_1: master, 4 workers, 3 ps");
  EXPECT_THAT(config.warnings, ElementsAre());
}

TEST(JobConfigTest, EachTierHasItsTasks) {
  for (const auto& [tier, tasks] : std::vector<std::pair<std::string, std::string>>{
           {"BASIC", "BASIC: master, 0 workers, 0 ps"},
           {"STANDARD_1", "STANDARD_1: master, 4 workers, 3 ps"},
           {"standard-1", "STANDARD_1: master, 4 workers, 3 ps"},
           {"SCALE_TIER_STANDARD_1", "STANDARD_1: master, 4 workers, 3 ps"},
           {"PREMIUM_1", "PREMIUM_1: master, 19 workers, 11 ps"},
           {"CUSTOM", "CUSTOM: master, 0 workers, 0 ps"}}) {
    EXPECT_EQ(TextOf(TasksOf({.scale_tier = tier})), tasks);
  }
  EXPECT_EQ(TextOf(TasksOf({})), "BASIC: master, 0 workers, 0 ps");
}

TEST(JobConfigTest, ACustomTierTakesTheCountsOfTheFile) {
  ASSERT_OK_AND_ASSIGN(const JobConfig config, Parse(R"(trainingInput:
  scaleTier: CUSTOM
  masterType: complex_model_m
  workerType: n1-highmem-8
  parameterServerType: large_model
  workerCount: 9
  parameterServerCount: "2"
  args:
  - --train-steps
  - 5000
  - "--name=a b"
  jobDir: out/census
)"));
  EXPECT_EQ(TextOf(TasksOf(config)), "CUSTOM: master, 9 workers, 2 ps");
  EXPECT_THAT(*config.args, ElementsAre("--train-steps", "5000", "--name=a b"));
  EXPECT_EQ(config.job_dir, "out/census");
}

TEST(JobConfigTest, AnEvaluatorStandsNextToAChief) {
  ASSERT_OK_AND_ASSIGN(const JobConfig config,
                       Parse("trainingInput: {scaleTier: STANDARD_1, evaluatorCount: 1}"));
  EXPECT_EQ(TextOf(TasksOf(config)), "STANDARD_1: chief, 4 workers, 3 ps, evaluator");
  EXPECT_EQ(TextOf(TasksOf({.scale_tier = "BASIC", .use_chief = true})),
            "BASIC: chief, 0 workers, 0 ps");
  EXPECT_THAT(TextOf(TasksOf({.evaluator_count = 1, .use_chief = false})),
              HasSubstr("evaluatorCount must be 0 with a master, which evaluates itself, got 1"));
}

TEST(JobConfigTest, WhatMeansNothingHereIsNamed) {
  ASSERT_OK_AND_ASSIGN(const JobConfig config, Parse(R"(labels: {team: ads}
trainingInput:
  region: us-central1
  runtimeVersion: '1.4'
  scheduling: {maxRunningTime: 3600s}
)"));
  EXPECT_THAT(
      config.warnings,
      ElementsAre(
          "config.yaml:1:1: 'labels' means nothing here and is ignored",
          "config.yaml:3:3: 'trainingInput.region' means nothing here and is ignored",
          "config.yaml:4:3: 'trainingInput.runtimeVersion' means nothing here and is ignored",
          "config.yaml:5:3: 'trainingInput.scheduling' means nothing here and is ignored"));
}

TEST(JobConfigTest, AnEmptyFileAsksForNothing) {
  for (const char* text : {"", "\n", "# nothing\n", "---\n", "~"}) {
    ASSERT_OK_AND_ASSIGN(const JobConfig config, Parse(text));
    EXPECT_EQ(TextOf(TasksOf(config)), "BASIC: master, 0 workers, 0 ps") << text;
  }
}

TEST(JobConfigTest, FlagsCountAndArgumentsThatLoseAreNamed) {
  ASSERT_OK_AND_ASSIGN(const JobConfig file,
                       Parse("trainingInput: {scaleTier: PREMIUM_1, args: [--a, --b]}"));
  const JobConfig both =
      OverJobConfig(file, {.scale_tier = "BASIC", .args = std::vector<std::string>{"--c"}});
  EXPECT_EQ(TextOf(TasksOf(both)), "BASIC: master, 0 workers, 0 ps");
  EXPECT_THAT(*both.args, ElementsAre("--c"));
  EXPECT_THAT(both.warnings, ElementsAre("the arguments behind the program count; "
                                         "trainingInput.args is ignored: --a --b"));
  EXPECT_THAT(*OverJobConfig(file, {}).args, ElementsAre("--a", "--b"));
}

TEST(JobConfigTest, GpusAndTpusAreRefusedAndWhy) {
  const std::string why = "tensors are in the memory of the CPU here";
  for (const char* tier : {"BASIC_GPU", "basic-gpu", "BASIC_TPU", "STANDARD_GPU"}) {
    const auto tasks = TasksOf({.scale_tier = tier});
    EXPECT_STATUS(tasks, absl::StatusCode::kUnimplemented, why) << tier;
  }
  for (const char* type : {"standard_gpu", "complex_model_m_gpu", "complex_model_l_gpu",
                           "standard_p100", "standard_v100", "cloud_tpu", "a2-highgpu-1g"}) {
    const auto tasks = TasksOf({.scale_tier = "CUSTOM", .worker_type = type});
    EXPECT_STATUS(tasks, absl::StatusCode::kUnimplemented,
                  absl::StrCat("workerType must be a machine without accelerators: ", why))
        << type;
  }
  EXPECT_STATUS(Parse("trainingInput:\n  masterConfig:\n    acceleratorConfig: {count: 1}\n"),
                absl::StatusCode::kUnimplemented,
                "config.yaml:3:5: trainingInput.masterConfig.acceleratorConfig must not be given");
  for (const char* type : {"standard", "large_model", "complex_model_s", "n1-standard-4"}) {
    EXPECT_OK(TasksOf({.scale_tier = "CUSTOM", .master_type = type}).status()) << type;
  }
}

TEST(JobConfigTest, CountsThatCannotBeAreRefused) {
  EXPECT_THAT(TextOf(TasksOf({.scale_tier = "STANDARD_2"})),
              HasSubstr("scale tier must be BASIC, STANDARD_1, PREMIUM_1 or CUSTOM, got "
                        "'STANDARD_2'"));
  EXPECT_THAT(TextOf(TasksOf({.scale_tier = "STANDARD_1", .worker_count = 2})),
              HasSubstr("must be given with scale tier CUSTOM, got STANDARD_1"));
  EXPECT_THAT(TextOf(TasksOf({.worker_count = 2})),
              HasSubstr("parameterServerCount must be >= 1 with workers, got 0: each of the 3 "
                        "trainers would train a model of its own"));
}

TEST(JobConfigTest, MistakesAreNamedWithLineColumnKeyAndValue) {
  struct Case {
    const char* text;
    const char* message;
  };
  const Case cases[] = {
      {"trainingInput:\n  workerCount: four\n",
       "config.yaml:2:16: trainingInput.workerCount must be an integer in [0, 1000], got 'four'"},
      {"trainingInput:\n  workerCount: -1\n",
       "config.yaml:2:16: trainingInput.workerCount must be an integer in [0, 1000], got '-1'"},
      {"trainingInput:\n  workerCount: 1001\n", "must be an integer in [0, 1000], got '1001'"},
      {"trainingInput:\n  workerCount: 99999999999999999999\n", "must be an integer in [0, 1000]"},
      {"trainingInput:\n  workerCount: 4.0\n", "must be an integer in [0, 1000], got '4.0'"},
      {"trainingInput:\n  workerCount:\n", "must be an integer in [0, 1000], got nothing"},
      {"trainingInput:\n  workerCount: [4]\n", "must be an integer in [0, 1000], got a list"},
      {"trainingInput:\n  evaluatorCount: 2\n", "must be an integer in [0, 1], got '2'"},
      {"trainingInput:\n  scaleTier: {a: b}\n",
       "config.yaml:2:14: trainingInput.scaleTier must be a text, got a map"},
      {"trainingInput:\n  scaleTier: ''\n", "trainingInput.scaleTier must be a text, got ''"},
      {"trainingInput:\n  args: --a\n",
       "config.yaml:2:9: trainingInput.args must be a list of texts, got '--a'"},
      {"trainingInput:\n  args: [--a, [--b]]\n",
       "config.yaml:2:15: trainingInput.args[1] must be a text, got a list"},
      {"trainingInput:\n  args: [--a, ~]\n", "trainingInput.args[1] must be a text, got nothing"},
      {"trainingInput:\n  useChiefInTfConfig: 1\n", "must be true or false, got '1'"},
      {"trainingInput:\n  scaleTier: BASIC\n  scaleTier: CUSTOM\n",
       "config.yaml:3:3: 'trainingInput.scaleTier' must be given once, got it twice"},
      {"trainingInput:\n  workerCout: 4\n",
       "config.yaml:2:3: a key must be known, got 'trainingInput.workerCout'; did you mean "
       "'workerCount'?"},
      {"traininginput:\n  scaleTier: BASIC\n",
       "config.yaml:1:1: a key must be known, got 'traininginput'; did you mean 'trainingInput'?"},
      {"trainingInput: [scaleTier]\n",
       "config.yaml:1:16: trainingInput must be a map (\"key: value\"), got a list"},
      {"STANDARD_1\n", "config.yaml:1:1: the file must be a map"},
      {"- a\n- b\n", "config.yaml:1:1: the file must be a map"},
      {"trainingInput:\n  ? [a]\n  : b\n", "config.yaml:2:5: a key must be a text, got a list"},
      {"trainingInput:\n\tscaleTier: BASIC\n", "config.yaml:2:"},
      {"trainingInput: {scaleTier: BASIC\n", "must be YAML, got: "},
      {"trainingInput: {scaleTier: *tier}\n", "must be YAML, got: "},
      {"trainingInput: &a\n  args: [*a]\n", "must not refer to what it is in"},
      {"trainingInput: {}\n---\ntrainingInput: {}\n", "must be one document, got a second one"},
      {"predictionInput: {}\n", "batch_predict predicts, submit trains"},
  };
  for (const Case& c : cases) {
    const auto config = Parse(c.text);
    ASSERT_FALSE(config.ok()) << c.text;
    EXPECT_THAT(std::string(config.status().message()), HasSubstr(c.message)) << c.text;
    EXPECT_EQ(config.status().message().find('\n'), absl::string_view::npos) << c.text;
  }
}

TEST(JobConfigTest, BombsAreRefused) {
  std::string laughs = "a0: &a0 [x, x]\n";
  for (int i = 1; i <= 15; ++i) {
    absl::StrAppend(&laughs, "a", i, ": &a", i, " [", "*a", i - 1, ", *a", i - 1, ", *a", i - 1,
                    ", *a", i - 1, "]\n");
  }
  // 60 aliases that stand for a billion values: nobody copies them.
  ASSERT_OK_AND_ASSIGN(const JobConfig config,
                       Parse(absl::StrCat(laughs, "trainingInput: {scaleTier: BASIC}\n")));
  EXPECT_EQ(config.warnings.size(), 16u);
  EXPECT_STATUS(Parse(absl::StrCat(laughs, "trainingInput: {args: *a15}\n")),
                absl::StatusCode::kInvalidArgument, "args[0] must be a text, got a list");
  std::string aliases = "a: &a x\nb: [";
  for (int i = 0; i <= kMaxJobConfigAliases; ++i) absl::StrAppend(&aliases, "*a, ");
  EXPECT_STATUS(Parse(aliases + "]\n"), absl::StatusCode::kInvalidArgument,
                "must have at most 100 aliases, got another one");

  EXPECT_STATUS(Parse(std::string(kMaxJobConfigBytes + 1, ' ')), absl::StatusCode::kInvalidArgument,
                "config.yaml: must have at most 65536 bytes, got 65537");
  for (const char* opening : {"[", "{a: ", "- ", "? "}) {
    for (const int times : {kMaxJobConfigDepth + 1, 15'000}) {
      std::string deep;
      for (int i = 0; i < times; ++i) deep += opening;
      EXPECT_STATUS(Parse(deep), absl::StatusCode::kInvalidArgument,
                    "values must be nested at most 20 deep")
          << opening << times;
    }
  }
  std::string many = "a: [";
  for (int i = 0; i < kMaxJobConfigValues; ++i) many += "1,";
  EXPECT_STATUS(Parse(many + "]"), absl::StatusCode::kInvalidArgument,
                "must have at most 10000 values");
  std::string args = "trainingInput: {args: [";
  for (int i = 0; i < 1001; ++i) args += "1,";
  EXPECT_STATUS(Parse(args + "]}"), absl::StatusCode::kInvalidArgument,
                "trainingInput.args must have at most 1000 texts, got 1001");
  EXPECT_STATUS(Parse(std::string("a: b\0trainingInput: 3", 21)),
                absl::StatusCode::kInvalidArgument, "must be text, got a zero at byte 5");
}

TEST(JobConfigTest, TextsThatAreDamagedAnywhereEndInAnAnswer) {
  const std::string text = R"(trainingInput: &t
  scaleTier: CUSTOM
  workerCount: "4"
  args: [--a, 'b', "c\x41", *s]
  x: |
    lines
  y: !!str 3
? z
: - 1
  - {u: v}
)";
  const char* const given = std::getenv("MILLRACE_FUZZ_SEED");
  const auto seed =
      given != nullptr ? static_cast<uint32_t>(std::strtoul(given, nullptr, 10)) : 28u;
  SCOPED_TRACE(absl::StrCat("MILLRACE_FUZZ_SEED=", seed));
  std::mt19937 random(seed);
  const std::string letters =
      "[]{}&*!|>'\"%@`:-?,#\n \t\\~\x80\xff"
      "a1";
  for (int round = 0; round < 3000; ++round) {
    std::string damaged = text;
    for (uint32_t edits = 1 + random() % 4; edits > 0; --edits) {
      const size_t at = random() % damaged.size();
      const char letter = letters[random() % letters.size()];
      switch (random() % 3) {
        case 0:
          damaged[at] = letter;
          break;
        case 1:
          damaged.insert(at, 1 + random() % 5, letter);
          break;
        default:
          damaged.erase(at, 1 + random() % 8);
      }
      if (damaged.empty()) damaged = "a";
    }
    const StatusOr<JobConfig> config = Parse(damaged);
    if (!config.ok()) {
      EXPECT_THAT(std::string(config.status().message()), HasSubstr("config.yaml")) << damaged;
    }
  }
}

}  // namespace
}  // namespace millrace
