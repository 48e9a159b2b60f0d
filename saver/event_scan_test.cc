// SPDX-License-Identifier: Apache-2.0
#include "saver/event_scan.h"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/dtype.h"
#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/tensor_proto.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "proto/summary.pb.h"
#include "saver/event_writer.h"

// covers: events: a scan reads all files of a directory, damaged, torn and vanished ones, too,
//   tells each damage once, and knows the scalars of TensorFlow 1 and 2

namespace millrace {
namespace {

using tensorflow::Summary;

class EventScanTest : public ::testing::Test {
 protected:
  EventScanTest()
      : fs_(FileSystem::Posix()),
        dir_(JoinPath(::testing::TempDir(), absl::StrCat("event_scan_", RandomHexName()))) {
    EXPECT_OK(fs_->RecursivelyCreateDirectory(dir_));
  }
  ~EventScanTest() override { fs_->RecursivelyDelete(dir_).IgnoreError(); }

  std::string Path(const std::string& name) const { return JoinPath(dir_, name); }
  // A file with this name and one scalar.
  void Write(const std::string& name, const std::string& tag, float value, int64_t step) const {
    const std::string other = absl::StrCat(dir_, "_", RandomHexName());
    ASSERT_OK_AND_ASSIGN(const auto writer, EventWriter::Open(other));
    ASSERT_OK(writer->AddScalar(tag, value, step));
    ASSERT_OK(writer->Close());
    ASSERT_OK_AND_ASSIGN(const auto names, fs_->GetChildren(other));
    ASSERT_EQ(names.size(), 1u);
    ASSERT_OK(fs_->RenameFile(JoinPath(other, names[0]), Path(name)));
    ASSERT_OK(fs_->RecursivelyDelete(other));
  }
  // "loss=2@1, loss=1@2"; what is damaged is in damage_.
  std::string Scan(const std::string& path) {
    std::vector<std::string> texts;
    damage_.clear();
    status_ = ScanScalars(
        fs_, path,
        [&](const EventScalar& scalar) {
          texts.push_back(absl::StrCat(scalar.tag, "=", scalar.value, "@", scalar.step));
        },
        [&](const Status& damage) { damage_.push_back(std::string(damage.message())); });
    return absl::StrJoin(texts, ", ");
  }

  FileSystem* const fs_;
  const std::string dir_;
  std::vector<std::string> damage_;
  Status status_;
};

TEST_F(EventScanTest, EachDamageIsToldOnceAndTheOtherFilesAreRead) {
  Write("1.tfevents", "loss", 4, 1);
  ASSERT_OK(WriteFileAtomically(fs_, Path("2.tfevents"), "no records at all, only text"));
  Write("3.tfevents", "loss", 3, 2);
  ASSERT_OK(WriteFileAtomically(fs_, Path("4.tfevents"), "neither here, and it is the last one"));
  EXPECT_EQ(Scan(dir_), "loss=4@1, loss=3@2");
  EXPECT_OK(status_);
  ASSERT_EQ(damage_.size(), 2u);
  EXPECT_NE(damage_[0].find("2.tfevents"), std::string::npos) << damage_[0];
  EXPECT_NE(damage_[1].find("4.tfevents"), std::string::npos) << damage_[1];
}

TEST_F(EventScanTest, ATornFileIsNoDamage) {
  Write("1.tfevents", "loss", 4, 1);
  ASSERT_OK_AND_ASSIGN(const std::string bytes, ReadFileToString(fs_, Path("1.tfevents")));
  ASSERT_OK(WriteFileAtomically(fs_, Path("1.tfevents"), bytes.substr(0, bytes.size() - 3)));
  Write("2.tfevents", "loss", 3, 2);
  EXPECT_EQ(Scan(dir_), "loss=3@2");
  EXPECT_OK(status_);
  EXPECT_TRUE(damage_.empty()) << damage_[0];
}

TEST_F(EventScanTest, AFileThatIsGoneAndADirectoryArePassedOver) {
  Write("1.tfevents", "loss", 4, 1);
  std::error_code error;
  std::filesystem::create_symlink(Path("nothing"), Path("2.tfevents"), error);
  ASSERT_FALSE(error) << error.message();
  ASSERT_OK(fs_->CreateDirectory(Path("3.tfevents")));
  Write("4.tfevents", "loss", 3, 2);
  EXPECT_EQ(Scan(dir_), "loss=4@1, loss=3@2");
  EXPECT_OK(status_);
}

TEST_F(EventScanTest, OneFileIsReadAloneAndNoneIsNotFound) {
  Write("1.tfevents", "loss", 4, 1);
  Write("2.tfevents", "loss", 3, 2);
  EXPECT_EQ(Scan(Path("2.tfevents")), "loss=3@2");
  EXPECT_OK(status_);
  EXPECT_EQ(Scan(Path("nothing")), "");
  EXPECT_STATUS(status_, absl::StatusCode::kNotFound, "nothing");
}

Summary::Value OfTensor(const Tensor& tensor) {
  Summary::Value value;
  EXPECT_OK(TensorToProto(tensor, value.mutable_tensor()));
  return value;
}

TEST_F(EventScanTest, AScalarIsASimpleValueOrATensorOfOneNumber) {
  Summary::Value simple, image, huge;
  simple.set_simple_value(0.5f);
  image.mutable_image()->set_width(3);
  // Its elements would fill the memory.
  huge.mutable_tensor()->set_dtype(tensorflow::DT_FLOAT);
  huge.mutable_tensor()->mutable_tensor_shape()->add_dim()->set_size(int64_t{1} << 40);
  huge.mutable_tensor()->add_float_val(1);
  struct Case {
    std::string name;
    Summary::Value value;
    std::optional<double> want;
  };
  const std::vector<Case> cases = {
      {"simple", simple, 0.5},
      {"float", OfTensor(Tensor::Scalar(0.25f)), 0.25},
      {"double", OfTensor(Tensor::Scalar(0.1)), 0.1},
      {"half", OfTensor(Tensor::Scalar(ToHalf(1.5f))), 1.5},
      {"bfloat16", OfTensor(Tensor::Scalar(ToBfloat16(-2.0f))), -2.0},
      {"int32", OfTensor(Tensor::Scalar<int32_t>(-7)), -7.0},
      {"int64", OfTensor(Tensor::Scalar<int64_t>(int64_t{1} << 40)), 1099511627776.0},
      {"one element", OfTensor(TensorOf<float>({1, 1}, {3})), 3.0},
      {"two elements", OfTensor(TensorOf<float>({2}, {3, 4})), std::nullopt},
      {"none", OfTensor(TensorOf<float>({0}, {})), std::nullopt},
      {"text", OfTensor(Tensor::Scalar("model.ckpt-1")), std::nullopt},
      {"image", image, std::nullopt},
      {"nothing", Summary::Value(), std::nullopt},
      {"huge", huge, std::nullopt},
  };
  for (const Case& c : cases) EXPECT_EQ(ScalarOf(c.value), c.want) << c.name;
}

TEST_F(EventScanTest, ATagIsTheNodeInFilesFromBeforeThereWereTags) {
  Summary::Value value;
  value.set_node_name("loss:0");
  EXPECT_EQ(TagOf(value), "loss:0");
  value.set_tag("loss");
  EXPECT_EQ(TagOf(value), "loss");
}

}  // namespace
}  // namespace millrace
