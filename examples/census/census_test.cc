// SPDX-License-Identifier: Apache-2.0
//
// What census is made of: its flags, its layers' sizes, people of files and drawn ones.

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "core/file_system.h"
#include "core/program.h"
#include "core/tensor.h"
#include "core/testing/shared_data.h"
#include "core/testing/tensor_testing.h"
#include "data/dataset.h"
#include "data/iterator.h"
#include "estimator/estimator.h"
#include "estimator/input_fn.h"
#include "estimator/mode.h"
#include "estimator/params.h"
#include "estimator/run_config.h"
#include "examples/census/flags.h"
#include "examples/census/model.h"
#include "examples/census/people.h"
#include "examples/census/vocabularies.h"
#include "graph/scope.h"
#include "gtest/gtest.h"

// covers: training: the census program refuses wrong flags and rows with one line
// covers: article 0-8, 0-9: 15 columns, a blank after every comma that is part of words and labels
// covers: article 0-16: lines, skipped, parsed, shuffled over ten batches, repeated, batched
// covers: article 0-44: the trainer's flags; unknown ones are ignored with a message; wrong values
//   end with one message and 1

namespace millrace::census {
namespace {

using Words = std::vector<std::string>;

// covers: article 0-13: layers [100, 70, 48, 34]
TEST(HiddenUnits, ShrinkByTheWholePartOfAPower) {
  // 100 * 0.7^2 is a little less than 49.
  EXPECT_EQ(HiddenUnits(100, 4, 0.7), (std::vector<int64_t>{100, 70, 48, 34}));
  EXPECT_EQ(HiddenUnits(4, 5, 0.5), (std::vector<int64_t>{4, 2, 2, 2, 2}));
  EXPECT_EQ(HiddenUnits(10, 2, 3), (std::vector<int64_t>{10, 30}));
}

TEST(Flags, AreThoseOfTheTrainer) {
  ASSERT_OK_AND_ASSIGN(const Flags flags, ParseFlags({"--train-files",
                                                      "a.csv",
                                                      "b.csv",
                                                      "--eval-files=c.csv",
                                                      "--num-epochs",
                                                      "3",
                                                      "--train-steps",
                                                      "5000",
                                                      "--train-batch-size=7",
                                                      "--eval-batch-size",
                                                      "9",
                                                      "--embedding-size",
                                                      "4",
                                                      "--first-layer-size",
                                                      "50",
                                                      "--num-layers",
                                                      "2",
                                                      "--scale-factor",
                                                      "0.5",
                                                      "--job-dir",
                                                      "run",
                                                      "--verbosity",
                                                      "ERROR",
                                                      "--eval-steps",
                                                      "11",
                                                      "--export-format",
                                                      "CSV"}));
  EXPECT_EQ(flags.train_files, (Words{"a.csv", "b.csv"}));
  EXPECT_EQ(flags.eval_files, (Words{"c.csv"}));
  EXPECT_EQ(flags.num_epochs, 3);
  EXPECT_EQ(flags.train_steps, 5000);
  EXPECT_EQ(flags.train_batch_size, 7);
  EXPECT_EQ(flags.eval_batch_size, 9);
  EXPECT_EQ(flags.embedding_size, 4);
  EXPECT_EQ(flags.first_layer_size, 50);
  EXPECT_EQ(flags.num_layers, 2);
  EXPECT_EQ(flags.scale_factor, 0.5);
  EXPECT_EQ(flags.job_dir, "run");
  EXPECT_EQ(flags.verbosity, LogLevel::kError);
  EXPECT_EQ(flags.eval_steps, 11);
  EXPECT_EQ(flags.export_format, ExportFormat::kCsv);
  EXPECT_TRUE(flags.ignored.empty());
}

TEST(Flags, HaveTheTrainersDefaults) {
  ASSERT_OK_AND_ASSIGN(const Flags flags, ParseFlags({"--train-steps=1"}));
  EXPECT_EQ(flags.train_batch_size, 40);
  EXPECT_EQ(flags.eval_batch_size, 40);
  EXPECT_EQ(flags.embedding_size, 8);
  EXPECT_EQ(HiddenUnits(flags.first_layer_size, flags.num_layers, flags.scale_factor),
            (std::vector<int64_t>{100, 70, 48, 34}));
  EXPECT_EQ(flags.eval_steps, 100);
  EXPECT_EQ(flags.num_epochs, std::nullopt);
  EXPECT_EQ(flags.export_format, ExportFormat::kJson);
}

TEST(Flags, OthersAreIgnoredAndTold) {
  ASSERT_OK_AND_ASSIGN(const Flags flags,
                       ParseFlags({"--runtime-version", "1.4", "--train_steps", "10", "--train-f",
                                   "a", "--eval-files", "b", "--tier=BASIC"}));
  EXPECT_EQ(flags.ignored, (Words{"--runtime-version", "1.4", "--tier=BASIC"}));
  EXPECT_EQ(flags.train_steps, 10);
  EXPECT_EQ(flags.train_files, Words{"a"});
}

TEST(Flags, HelpNeedsNothingElse) {
  ASSERT_OK_AND_ASSIGN(const Flags flags, ParseFlags({"--help"}));
  EXPECT_TRUE(flags.help);
  for (const char* name : {"--train-files", "--export-format", "--job-dir"}) {
    EXPECT_TRUE(absl::StrContains(HelpText(Help()), name)) << name;
  }
}

TEST(Flags, WrongOnesAreNamed) {
  const struct {
    Words args;
    const char* error;
  } cases[] = {
      {{}, "--train-steps must be given, or --num-epochs, got none"},
      {{"--train-steps", "0"}, "--train-steps must be an integer >= 1, got '0'"},
      {{"--train-steps=many"}, "--train-steps must be an integer >= 1, got 'many'"},
      {{"--train-steps"}, "--train-steps must have a value, got none"},
      {{"--train-steps=1", "--train-files", "a"}, "together, got only --train-files"},
      {{"--train-steps=1", "--eval-files", "a"}, "together, got only --eval-files"},
      {{"--train-steps=1", "--scale-factor=-1"}, "--scale-factor must be a number > 0, got '-1'"},
      {{"--train-steps=1", "--scale-factor=nan"}, "--scale-factor must be a number > 0, got 'nan'"},
      {{"--train-steps=1", "--num-layers=101"}, "--num-layers must be an integer in [1, 100]"},
      {{"--train-steps=1", "--export-format=json"},
       "--export-format must be one of JSON, CSV, EXAMPLE, got 'json'"},
      {{"--train-steps=1", "--verbosity=LOUD"}, "--verbosity must be one of DEBUG, INFO"},
      {{"--train-steps=1", "--skip-header-lines=1"}, "must be given with files"},
  };
  for (const auto& [args, error] : cases) {
    EXPECT_STATUS(ParseFlags(args), absl::StatusCode::kInvalidArgument, error)
        << absl::StrJoin(args, " ");
  }
}

// --- People --------------------------------------------------------------------------------------

StatusOr<std::vector<data::Element>> Batches(const PeopleOptions& options) {
  const Scope scope;
  MR_ASSIGN_OR_RETURN(const Input input,
                      People(options)({scope, Mode::kTrain, Params(), RunConfig()}));
  MR_ASSIGN_OR_RETURN(const auto iterator, input.dataset()->MakeIterator());
  std::vector<data::Element> batches;
  for (data::Element batch;;) {
    MR_ASSIGN_OR_RETURN(const bool more, iterator->Next(&batch));
    if (!more) return batches;
    batches.push_back(batch);
  }
}

constexpr char kTwoPeople[] =
    "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, "
    "Male, 2174, 0, 40, United-States, <=50K\n"
    "52, Self-emp-not-inc, 209642, HS-grad, 9, Married-civ-spouse, Exec-managerial, Husband, "
    "White, Male, 0, 0, 45, United-States, >50K\n";

class PeopleTest : public ::testing::Test {
 protected:
  std::string File(const std::string& name, const std::string& text) {
    const std::string path = JoinPath(
        ::testing::TempDir(),
        absl::StrCat(::testing::UnitTest::GetInstance()->current_test_info()->name(), name));
    EXPECT_OK(WriteFileAtomically(FileSystem::Posix(), path, text));
    return path;
  }
  PeopleOptions Once(std::vector<std::string> files) {
    return {.files = std::move(files), .num_epochs = 1, .shuffle = false};
  }
};

TEST_F(PeopleTest, KeepTheBlanksOfWordsAndLoseTheUnusedColumn) {
  ASSERT_OK_AND_ASSIGN(const auto batches, Batches(Once({File("a", kTwoPeople)})));
  ASSERT_EQ(batches.size(), 1u);
  const data::Element& batch = batches[0];
  ASSERT_EQ(batch.size(), 14u);
  ExpectTensorEqual(batch[0], Tensor::Of<int32_t>({39, 52}));
  ExpectTensorEqual(batch[1], Tensor::Of<std::string>({" State-gov", " Self-emp-not-inc"}));
  ExpectTensorEqual(batch[2], Tensor::Of<std::string>({" Bachelors", " HS-grad"}));
  ExpectTensorEqual(batch[9], Tensor::Of<int32_t>({2174, 0}));
  ExpectTensorEqual(batch[13], Tensor::Of<int64_t>({0, 1}));
}

// covers: article 0-14: the columns of the notebook
// In the order of the article, which is that of ids; here: no word too many, none missing.
TEST_F(PeopleTest, VocabulariesAreTheWordsOfTheData) {
  const std::string path = SharedDataPath("census/adult.data.csv");
  if (path.empty()) GTEST_SKIP() << "MILLRACE_SHARED has no census/adult.data.csv";
  ASSERT_OK_AND_ASSIGN(const std::string text, ReadFileToString(FileSystem::Posix(), path));
  std::vector<std::set<std::string>> words(PersonFormat().names.size());
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const std::vector<std::string> fields = absl::StrSplit(line, ',');
    ASSERT_EQ(fields.size(), words.size()) << line;
    for (size_t i = 0; i < fields.size(); ++i) words[i].insert(fields[i]);
  }
  Words occupations = Occupations();
  occupations.push_back(" ?");
  const std::map<std::string, Words> vocabularies = {{"gender", Genders()},
                                                     {"race", Races()},
                                                     {"education", Educations()},
                                                     {"marital_status", MaritalStatuses()},
                                                     {"relationship", Relationships()},
                                                     {"workclass", Workclasses()},
                                                     {"occupation", occupations},
                                                     {kLabelColumn, LabelTexts()}};
  size_t compared = 0;
  for (size_t i = 0; i < words.size(); ++i) {
    const auto found = vocabularies.find(PersonFormat().names[i]);
    if (found == vocabularies.end()) continue;
    ++compared;
    const std::set<std::string> have(found->second.begin(), found->second.end());
    EXPECT_EQ(have, words[i]) << found->first;
    EXPECT_EQ(have.size(), found->second.size()) << found->first << ": a word twice";
  }
  EXPECT_EQ(compared, vocabularies.size());
}

TEST_F(PeopleTest, ReadFilesOneAfterTheOtherAsOftenAsAsked) {
  PeopleOptions options = Once({File("a", kTwoPeople), File("b", kTwoPeople)});
  options.num_epochs = 3;
  options.batch_size = 5;
  options.shuffle = true;
  ASSERT_OK_AND_ASSIGN(const auto batches, Batches(options));
  ASSERT_EQ(batches.size(), 3u);
  EXPECT_EQ(batches[2][0].dim(0), 2);  // 12 people
}

TEST_F(PeopleTest, SmallFilesAreReadOnce) {
  for (const bool small : {true, false}) {
    PeopleOptions options = Once({File("a", kTwoPeople), File("b", kTwoPeople)});
    options.num_epochs = 2;
    options.batch_size = 4;
    options.most_kept_bytes = 2 * static_cast<int64_t>(sizeof(kTwoPeople) - 1) - (small ? 0 : 1);
    const Scope scope;
    ASSERT_OK_AND_ASSIGN(const Input input,
                         People(options)({scope, Mode::kTrain, Params(), RunConfig()}));
    EXPECT_EQ(absl::StrContains(input.dataset()->DebugString(), "Cache"), small)
        << input.dataset()->DebugString();
    ASSERT_OK_AND_ASSIGN(const auto batches, Batches(options));
    ASSERT_EQ(batches.size(), 2u);
    ExpectTensorEqual(batches[0][0], batches[1][0]);
  }
}

// covers: article 0-17: the header of the first file alone is skipped; that of the second is an
//   error with its place
TEST_F(PeopleTest, HeaderIsSkippedOfTheFirstFileAlone) {
  const std::string header = "age,workclass\n";
  PeopleOptions options = Once({File("a", header + kTwoPeople), File("b", header + kTwoPeople)});
  options.skip_header_lines = 1;
  options.batch_size = 2;
  // The second header is a row with two columns, and told with its place.
  EXPECT_STATUS(Batches(options), absl::StatusCode::kInvalidArgument,
                "Expect 15 fields but have 2 in record");
  EXPECT_TRUE(absl::StrContains(Batches(options).status().message(), "HeaderIsSkippedOf"))
      << Batches(options).status();
  options.files.pop_back();
  EXPECT_OK(Batches(options).status());
}

// covers: article 0-18: labels are indices; one-hot ones are refused by name
TEST_F(PeopleTest, WrongRowsAreTold) {
  const std::string good = kTwoPeople;
  const struct {
    std::string row, error;
  } cases[] = {
      {"39, State-gov\n", "Expect 15 fields but have 2 in record 0"},
      {"old" + good.substr(2), "Field 0 in record 0 is not a valid int32: old"},
      {good.substr(0, good.find(" <=50K")) + "<=50K\n",
       "a', line 1: census: income_bracket must be ' <=50K' or ' >50K', got '<=50K'"},
      {good.substr(0, good.find(" <=50K")) + " <=50K.\n", "got ' <=50K.'"},
  };
  for (const auto& [row, error] : cases) {
    EXPECT_STATUS(Batches(Once({File("a", row)})), absl::StatusCode::kInvalidArgument, error);
  }
}

// Those in front of a bad row are there.
TEST_F(PeopleTest, ABadLabelIsAnErrorOfItsRow) {
  const std::string two = kTwoPeople;
  const std::string path =
      File("a", two + "9" + two.substr(1, two.find(" <=50K") - 1) + "?\n" + two);
  const Scope scope;
  PeopleOptions options = Once({path});
  options.batch_size = 1;
  ASSERT_OK_AND_ASSIGN(const Input input,
                       People(options)({scope, Mode::kTrain, Params(), RunConfig()}));
  ASSERT_OK_AND_ASSIGN(const auto iterator, input.dataset()->MakeIterator());
  std::vector<std::string> told;
  for (data::Element person;;) {
    const StatusOr<bool> more = iterator->Next(&person);
    if (more.ok() && !*more) break;
    told.push_back(more.ok() ? absl::StrCat(person[0].raw<int32_t>()[0])
                             : std::string(more.status().message()));
  }
  EXPECT_EQ(told,
            (std::vector<std::string>{"39", "52",
                                      absl::StrCat("Text lines '", path,
                                                   "', line 3: census: income_bracket must be "
                                                   "' <=50K' or ' >50K', got '?'"),
                                      "39", "52"}));
}

TEST_F(PeopleTest, WithIdsHaveNoTexts) {
  PeopleOptions options = Once({File("a", kTwoPeople)});
  options.prepare = [](const data::Dataset& people) { return WithIds({}, people); };
  const Scope scope;
  ASSERT_OK_AND_ASSIGN(const Input input,
                       People(options)({scope, Mode::kTrain, Params(), RunConfig()}));
  int ids = 0;
  for (const data::ComponentSpec& component : input.dataset()->spec()) {
    EXPECT_NE(component.dtype, DT_STRING) << component.name;
    ids += absl::StartsWith(component.name, "_ids/");
  }
  EXPECT_EQ(ids, 12);
}

TEST_F(PeopleTest, DrawnOnesAreRowsOfAFile) {
  const std::vector<std::string> rows = DrawPeople(4000, 7);
  EXPECT_EQ(rows, DrawPeople(4000, 7));
  EXPECT_NE(rows, DrawPeople(4000, 8));
  ASSERT_OK_AND_ASSIGN(
      const auto batches,
      Batches({.rows = rows, .num_epochs = 1, .shuffle = false, .batch_size = 4000}));
  ASSERT_EQ(batches.size(), 1u);
  const auto classes = batches[0][13].flat<int64_t>();
  const auto rich = std::count(classes.begin(), classes.end(), 1);
  EXPECT_GT(rich, 600);
  EXPECT_LT(rich, 1600);
}

TEST(Receivers, OfBadColumnsKeepTheError) {
  const Estimator income = IncomeModel({.embedding_size = 0}, RunConfig());
  EXPECT_STATUS(income.status(), absl::StatusCode::kInvalidArgument, "dimension must be >= 1");
}

}  // namespace
}  // namespace millrace::census
