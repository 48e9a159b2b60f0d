// SPDX-License-Identifier: Apache-2.0
#include "examples/mnist/digits.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/testing/tensor_testing.h"

// covers: article 2-22: MNIST's files (idx, gzip), shuffled epochs; drawn digits without a download

namespace millrace {
namespace {

TEST(DrawDigitsTest, SameSeedGivesSameDigitsAndAnotherSeedOthers) {
  const Digits a = DrawDigits(50, 7);
  const Digits b = DrawDigits(50, 7);
  const Digits c = DrawDigits(50, 8);
  EXPECT_EQ(a.labels, b.labels);
  EXPECT_EQ(a.pixels, b.pixels);
  EXPECT_NE(a.pixels, c.pixels);
  for (float pixel : a.pixels) {
    EXPECT_GE(pixel, 0.0f);
    EXPECT_LE(pixel, 1.0f);
  }
}

TEST(DrawDigitsTest, AllTenDigitsAppearAboutEquallyOften) {
  const Digits digits = DrawDigits(2000, 1);
  std::array<int, kDigitClasses> count = {};
  for (int32_t label : digits.labels) ++count[static_cast<size_t>(label)];
  for (int n : count) {
    EXPECT_GT(n, 140);
    EXPECT_LT(n, 260);
  }
}

// Softmax regression by stochastic gradient descent, written out: what a linear model can do.
double LinearAccuracy(const Digits& train, const Digits& test) {
  constexpr size_t kInputs = kDigitPixels + 1;
  std::vector<float> w(kInputs * kDigitClasses, 0);
  const auto scores = [&](const float* image) {
    std::array<float, kDigitClasses> z;
    for (size_t k = 0; k < kDigitClasses; ++k) z[k] = w[kDigitPixels * kDigitClasses + k];
    for (size_t j = 0; j < kDigitPixels; ++j) {
      if (image[j] == 0) continue;
      for (size_t k = 0; k < kDigitClasses; ++k) z[k] += w[j * kDigitClasses + k] * image[j];
    }
    return z;
  };
  for (int epoch = 0; epoch < 8; ++epoch) {
    const float rate = 0.03f / (1 + 0.3f * static_cast<float>(epoch));
    for (size_t i = 0; i < train.labels.size(); ++i) {
      const float* image = train.pixels.data() + i * kDigitPixels;
      std::array<float, kDigitClasses> z = scores(image);
      const float top = *std::max_element(z.begin(), z.end());
      float sum = 0;
      for (float& v : z) sum += v = std::exp(v - top);
      for (size_t k = 0; k < kDigitClasses; ++k) {
        const float step =
            rate * (z[k] / sum - (static_cast<int32_t>(k) == train.labels[i] ? 1.0f : 0.0f));
        w[kDigitPixels * kDigitClasses + k] -= step;
        for (size_t j = 0; j < kDigitPixels; ++j) {
          if (image[j] != 0) w[j * kDigitClasses + k] -= step * image[j];
        }
      }
    }
  }
  int right = 0;
  for (size_t i = 0; i < test.labels.size(); ++i) {
    const auto z = scores(test.pixels.data() + i * kDigitPixels);
    right += std::max_element(z.begin(), z.end()) - z.begin() == test.labels[i];
  }
  return static_cast<double>(right) / static_cast<double>(test.labels.size());
}

TEST(DrawDigitsTest, LinearModelStaysBelowNinetyPercent) {
  ASSERT_OK_AND_ASSIGN(const DigitSets sets, LoadDigits("", 3));
  const double accuracy = LinearAccuracy(sets.train, sets.test);
  EXPECT_LE(accuracy, 0.90);
  EXPECT_GE(accuracy, 0.40) << "the digits are no longer digits";
}

class IdxTest : public ::testing::Test {
 protected:
  IdxTest() : directory_(JoinPath(::testing::TempDir(), "idx_" + RandomHexName())) {
    EXPECT_OK(FileSystem::Posix()->RecursivelyCreateDirectory(directory_));
  }
  ~IdxTest() override { FileSystem::Posix()->RecursivelyDelete(directory_).IgnoreError(); }

  void Write(const std::string& name, const std::string& bytes) {
    ASSERT_OK(WriteFileAtomically(FileSystem::Posix(), JoinPath(directory_, name), bytes));
  }
  void WriteGz(const std::string& name, const std::string& bytes) {
    gzFile file = gzopen(JoinPath(directory_, name).c_str(), "wb");
    ASSERT_NE(file, nullptr);
    gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size()));
    gzclose(file);
  }
  static std::string Images(int count) {
    std::string bytes("\0\0\x08\x03\0\0\0", 7);
    bytes += static_cast<char>(count);
    bytes += std::string("\0\0\0\x1c\0\0\0\x1c", 8);
    return bytes + std::string(static_cast<size_t>(count) * kDigitPixels, '\x33');
  }
  static std::string Labels(const std::string& labels) {
    return std::string("\0\0\x08\x01\0\0\0", 7) + static_cast<char>(labels.size()) + labels;
  }
  void WriteGood() {
    Write("train-images-idx3-ubyte", Images(3));
    Write("train-labels-idx1-ubyte", Labels(std::string("\x01\x02\x09", 3)));
    WriteGz("t10k-images-idx3-ubyte.gz", Images(2));
    WriteGz("t10k-labels-idx1-ubyte.gz", Labels(std::string("\x00\x07", 2)));
  }
  const std::string directory_;
};

TEST_F(IdxTest, PlainAndCompressedFilesAreRead) {
  WriteGood();
  ASSERT_OK_AND_ASSIGN(const DigitSets sets, ReadDigits(directory_));
  EXPECT_EQ(sets.train.labels, (std::vector<int32_t>{1, 2, 9}));
  EXPECT_EQ(sets.test.labels, (std::vector<int32_t>{0, 7}));
  EXPECT_FLOAT_EQ(sets.test.pixels[5], 0.2f);
  ASSERT_OK_AND_ASSIGN(const DigitBatch batch, MakeBatch(sets.train, 1, 2));
  EXPECT_EQ(batch.images.shape().ToString(), "[2,784]");
  EXPECT_EQ(batch.labels.flat<float>()[2], 1.0f);
  EXPECT_EQ(batch.labels.flat<float>()[19], 1.0f);
  EXPECT_STATUS(MakeBatch(sets.train, 2, 2).status(), absl::StatusCode::kInvalidArgument,
                "images [2, 4) must be in [0, 3)");
}

TEST_F(IdxTest, BatchesShowEveryImageOncePerEpochAndSpanEpochs) {
  WriteGood();
  ASSERT_OK_AND_ASSIGN(const DigitSets sets, ReadDigits(directory_));
  BatchIterator batches(&sets.train, 5);
  std::array<int, kDigitClasses> count = {};
  for (int i = 0; i < 3; ++i) {
    ASSERT_OK_AND_ASSIGN(const DigitBatch batch, batches.Next(2));  // 6 = two epochs of 3
    for (size_t j = 0; j < 20; ++j) count[j % 10] += batch.labels.flat<float>()[j] == 1;
  }
  EXPECT_EQ(count[1], 2);
  EXPECT_EQ(count[2], 2);
  EXPECT_EQ(count[9], 2);
  EXPECT_STATUS(batches.Next(0).status(), absl::StatusCode::kInvalidArgument, "must be >= 1");
}

TEST_F(IdxTest, DamagedFilesAreNamed) {
  struct Case {
    const char* what;
    const char* file;
    std::string bytes;
    const char* message;
  };
  const Case cases[] = {
      {"empty", "train-images-idx3-ubyte", "", "must begin with an idx header of rank 3"},
      {"magic", "train-labels-idx1-ubyte", Images(3), "must begin with an idx header of rank 1"},
      {"short", "train-images-idx3-ubyte", Images(3).substr(0, 900),
       "must hold 2352 bytes of data"},
      {"long", "train-labels-idx1-ubyte", Labels("abc") + "x", "must hold 3 bytes of data"},
      {"count", "train-labels-idx1-ubyte", Labels(std::string(2, '\1')),
       "must hold 3 labels, got 2"},
      {"label", "train-labels-idx1-ubyte", Labels("\1\2\12"), "labels in [0, 9], got 10"},
  };
  for (const Case& c : cases) {
    WriteGood();
    Write(c.file, c.bytes);
    EXPECT_STATUS(ReadDigits(directory_).status(), absl::StatusCode::kDataLoss, c.message)
        << c.what;
  }
  EXPECT_STATUS(ReadDigits(directory_ + "/none").status(), absl::StatusCode::kNotFound,
                "must hold 'train-images-idx3-ubyte'");
}

}  // namespace
}  // namespace millrace
