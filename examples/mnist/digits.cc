// SPDX-License-Identifier: Apache-2.0
#include "examples/mnist/digits.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <numeric>

#include "core/file_system.h"

namespace millrace {
namespace {

// --- Drawing -------------------------------------------------------------------------------------

struct Point {
  double x, y;  // in [0, 1], y down
};
using Stroke = std::vector<Point>;

// An arc of an ellipse from angle a to b (degrees, 0 = right, 90 = down).
Stroke Arc(double cx, double cy, double rx, double ry, double a, double b) {
  constexpr int kSteps = 14;
  constexpr double kRadians = 3.14159265358979323846 / 180;
  Stroke stroke;
  for (int i = 0; i <= kSteps; ++i) {
    const double t = (a + (b - a) * i / kSteps) * kRadians;
    stroke.push_back({cx + rx * std::cos(t), cy + ry * std::sin(t)});
  }
  return stroke;
}

// The strokes of each digit; some digits have two ways of writing.
std::vector<Stroke> StrokesOf(int digit, bool second_form) {
  switch (digit) {
    case 0:
      return {Arc(0.5, 0.5, 0.28, 0.42, -90, 270)};
    case 1:
      return second_form ? std::vector<Stroke>{{{0.5, 0.08}, {0.5, 0.92}}}
                         : std::vector<Stroke>{{{0.32, 0.28}, {0.52, 0.08}, {0.52, 0.92}}};
    case 2: {
      Stroke top = Arc(0.5, 0.32, 0.26, 0.24, -170, 40);
      top.push_back({0.22, 0.92});
      top.push_back({0.8, 0.92});
      return {top};
    }
    case 3:
      return {Arc(0.46, 0.3, 0.25, 0.22, -150, 90), Arc(0.46, 0.71, 0.28, 0.21, -90, 150)};
    case 4:
      return second_form
                 ? std::vector<Stroke>{{{0.3, 0.1}, {0.26, 0.55}, {0.8, 0.55}},
                                       {{0.68, 0.12}, {0.64, 0.92}}}
                 : std::vector<Stroke>{{{0.64, 0.92}, {0.64, 0.08}, {0.2, 0.65}, {0.84, 0.65}}};
    case 5: {
      Stroke body = {{0.32, 0.1}, {0.28, 0.46}};
      const Stroke bow = Arc(0.46, 0.66, 0.28, 0.24, -120, 140);
      body.insert(body.end(), bow.begin(), bow.end());
      return {body, {{0.32, 0.1}, {0.76, 0.1}}};
    }
    case 6: {
      Stroke body = {{0.64, 0.08}, {0.38, 0.38}};
      const Stroke bow = Arc(0.5, 0.67, 0.25, 0.23, -160, 200);
      body.insert(body.end(), bow.begin(), bow.end());
      return {body};
    }
    case 7: {
      std::vector<Stroke> strokes = {{{0.22, 0.1}, {0.78, 0.1}, {0.42, 0.92}}};
      if (second_form) strokes.push_back({{0.36, 0.52}, {0.72, 0.52}});
      return strokes;
    }
    case 8:
      return {Arc(0.5, 0.29, 0.21, 0.2, -90, 270), Arc(0.5, 0.71, 0.26, 0.22, -90, 270)};
    default: {
      Stroke body = Arc(0.5, 0.33, 0.24, 0.23, 20, 380);
      body.push_back({second_form ? 0.74 : 0.6, 0.92});
      return {body};
    }
  }
}

double SquaredDistanceToSegment(const Point& p, const Point& a, const Point& b) {
  const double dx = b.x - a.x;
  const double dy = b.y - a.y;
  const double length2 = dx * dx + dy * dy;
  double t = length2 > 0 ? ((p.x - a.x) * dx + (p.y - a.y) * dy) / length2 : 0;
  t = std::clamp(t, 0.0, 1.0);
  const double x = p.x - (a.x + t * dx);
  const double y = p.y - (a.y + t * dy);
  return x * x + y * y;
}

void DrawDigit(int digit, std::mt19937_64* random, float* pixels) {
  std::uniform_real_distribution<double> unit(0, 1);
  const auto between = [&](double low, double high) { return low + (high - low) * unit(*random); };
  std::vector<Stroke> strokes = StrokesOf(digit, unit(*random) < 0.4);

  // One affine map for the digit (size, slant, turn, place in pixels), a wobble for each point.
  const double width = between(11, 19);
  const double height = between(15, 22);
  const double slant = between(-0.35, 0.35);
  const double turn = between(-0.3, 0.3);
  const double center_x = kDigitSide / 2.0 + between(-4, 4);
  const double center_y = kDigitSide / 2.0 + between(-3, 3);
  const double wobble = between(0.2, 0.8);
  const double radius = between(0.7, 1.7);
  for (Stroke& stroke : strokes) {
    for (Point& point : stroke) {
      const double y = (point.y - 0.5) * height + between(-wobble, wobble);
      const double x = (point.x - 0.5) * width - slant * y + between(-wobble, wobble);
      point = {center_x + x * std::cos(turn) - y * std::sin(turn),
               center_y + x * std::sin(turn) + y * std::cos(turn)};
    }
  }
  std::normal_distribution<double> noise(0, between(0.02, 0.12));
  for (int row = 0; row < kDigitSide; ++row) {
    for (int column = 0; column < kDigitSide; ++column) {
      const Point center = {column + 0.5, row + 0.5};
      double squared = kDigitSide * kDigitSide;
      for (const Stroke& stroke : strokes) {
        for (size_t i = 1; i < stroke.size(); ++i) {
          squared = std::min(squared, SquaredDistanceToSegment(center, stroke[i - 1], stroke[i]));
        }
      }
      // Full ink inside the stroke, a soft edge of one pixel.
      const double ink = std::clamp(radius + 0.5 - std::sqrt(squared), 0.0, 1.0);
      pixels[row * kDigitSide + column] =
          static_cast<float>(std::clamp(ink + noise(*random), 0.0, 1.0));
    }
  }
}

// --- Files ---------------------------------------------------------------------------------------

// Reads plain and gzip files alike. `limit` bounds what is read.
StatusOr<std::string> ReadGzFile(const std::string& path, size_t limit) {
  std::unique_ptr<gzFile_s, int (*)(gzFile)> file(gzopen(path.c_str(), "rb"), gzclose);
  if (file == nullptr) {
    return absl::NotFoundError(absl::StrCat("MNIST: file '", path, "' cannot be opened"));
  }
  std::string data;
  std::array<char, 1 << 16> block;
  while (true) {
    const int n = gzread(file.get(), block.data(), static_cast<unsigned>(block.size()));
    if (n < 0) {
      return absl::DataLossError(absl::StrCat("MNIST: file '", path, "' is damaged (gzip)"));
    }
    if (n == 0) return data;
    data.append(block.data(), static_cast<size_t>(n));
    if (data.size() > limit) {
      return absl::DataLossError(
          absl::StrCat("MNIST: file '", path, "' must hold at most ", limit, " bytes, got more"));
    }
  }
}

uint32_t BigEndian(const std::string& data, size_t offset) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i) value = value << 8 | static_cast<uint8_t>(data[offset + i]);
  return value;
}

// An idx file of unsigned bytes: magic 0x00000800 + rank, then the dimensions, then the data.
StatusOr<std::string> ReadIdx(const std::string& path, uint32_t rank, std::vector<uint32_t>* dims) {
  constexpr size_t kLimit = size_t{1} << 30;
  MR_ASSIGN_OR_RETURN(const std::string data, ReadGzFile(path, kLimit));
  const size_t header = 4 + 4 * size_t{rank};
  if (data.size() < header || BigEndian(data, 0) != 0x800 + rank) {
    return absl::DataLossError(absl::StrCat("MNIST: file '", path,
                                            "' must begin with an idx header of rank ", rank,
                                            ", got ", data.size(), " bytes of something else"));
  }
  uint64_t elements = 1;
  for (uint32_t i = 0; i < rank; ++i) {
    dims->push_back(BigEndian(data, 4 + 4 * size_t{i}));
    elements *= dims->back();
    if (elements > kLimit) break;
  }
  if (data.size() - header != elements) {
    return absl::DataLossError(absl::StrCat("MNIST: file '", path, "' must hold ", elements,
                                            " bytes of data as its header says, got ",
                                            data.size() - header));
  }
  return data.substr(header);
}

StatusOr<std::string> FindFile(const std::string& directory, const std::string& name) {
  for (const char* suffix : {"", ".gz"}) {
    const std::string path = JoinPath(directory, name + suffix);
    if (FileSystem::Default()->FileExists(path)) return path;
  }
  return absl::NotFoundError(absl::StrCat("MNIST: directory '", directory, "' must hold '", name,
                                          "' or '", name, ".gz', got neither"));
}

StatusOr<Digits> ReadSet(const std::string& directory, const std::string& prefix) {
  MR_ASSIGN_OR_RETURN(const std::string image_path,
                      FindFile(directory, prefix + "-images-idx3-ubyte"));
  MR_ASSIGN_OR_RETURN(const std::string label_path,
                      FindFile(directory, prefix + "-labels-idx1-ubyte"));
  std::vector<uint32_t> image_dims, label_dims;
  MR_ASSIGN_OR_RETURN(const std::string images, ReadIdx(image_path, 3, &image_dims));
  MR_ASSIGN_OR_RETURN(const std::string labels, ReadIdx(label_path, 1, &label_dims));
  if (image_dims[0] == 0 || image_dims[1] != kDigitSide || image_dims[2] != kDigitSide) {
    return absl::DataLossError(absl::StrCat("MNIST: file '", image_path,
                                            "' must hold images of 28 x 28, got ", image_dims[0],
                                            " of ", image_dims[1], " x ", image_dims[2]));
  }
  if (label_dims[0] != image_dims[0]) {
    return absl::DataLossError(absl::StrCat("MNIST: file '", label_path, "' must hold ",
                                            image_dims[0], " labels, got ", label_dims[0]));
  }
  Digits digits;
  digits.pixels.resize(images.size());
  for (size_t i = 0; i < images.size(); ++i) {
    digits.pixels[i] = static_cast<float>(static_cast<uint8_t>(images[i])) / 255.0f;
  }
  for (char label : labels) {
    const int value = static_cast<uint8_t>(label);
    if (value >= kDigitClasses) {
      return absl::DataLossError(
          absl::StrCat("MNIST: file '", label_path, "' must hold labels in [0, 9], got ", value));
    }
    digits.labels.push_back(value);
  }
  return digits;
}

}  // namespace

Digits DrawDigits(int64_t count, uint64_t seed) {
  Digits digits;
  digits.pixels.resize(static_cast<size_t>(count) * kDigitPixels);
  std::mt19937_64 random(seed);
  std::uniform_int_distribution<int32_t> any_digit(0, kDigitClasses - 1);
  for (int64_t i = 0; i < count; ++i) {
    const int32_t digit = any_digit(random);
    digits.labels.push_back(digit);
    DrawDigit(digit, &random, digits.pixels.data() + static_cast<size_t>(i) * kDigitPixels);
  }
  return digits;
}

StatusOr<DigitSets> ReadDigits(const std::string& directory) {
  DigitSets sets;
  MR_ASSIGN_OR_RETURN(sets.train, ReadSet(directory, "train"));
  MR_ASSIGN_OR_RETURN(sets.test, ReadSet(directory, "t10k"));
  return sets;
}

StatusOr<DigitSets> LoadDigits(const std::string& directory, uint64_t seed) {
  if (!directory.empty()) return ReadDigits(directory);
  constexpr int64_t kTrain = 10000;
  constexpr int64_t kTest = 1000;
  // The test digits have a seed that no training set has: odd against even.
  return DigitSets{DrawDigits(kTrain, 2 * seed), DrawDigits(kTest, 2 * seed + 1)};
}

namespace {

StatusOr<DigitBatch> BatchOf(const Digits& digits, absl::Span<const int64_t> which) {
  const int64_t n = static_cast<int64_t>(which.size());
  DigitBatch batch;
  MR_ASSIGN_OR_RETURN(const Shape image_shape, Shape::Make({n, kDigitPixels}));
  MR_ASSIGN_OR_RETURN(const Shape label_shape, Shape::Make({n, kDigitClasses}));
  MR_ASSIGN_OR_RETURN(batch.images, Tensor::Allocate(DT_FLOAT, image_shape));
  MR_ASSIGN_OR_RETURN(batch.labels, Tensor::Zeros(DT_FLOAT, label_shape));
  float* image = batch.images.mutable_flat<float>().data();
  float* label = batch.labels.mutable_flat<float>().data();
  for (int64_t i : which) {
    const size_t from = static_cast<size_t>(i);
    std::copy_n(digits.pixels.data() + from * kDigitPixels, kDigitPixels, image);
    label[digits.labels[from]] = 1;
    image += kDigitPixels;
    label += kDigitClasses;
  }
  return batch;
}

}  // namespace

StatusOr<DigitBatch> MakeBatch(const Digits& digits, int64_t begin, int64_t count) {
  if (begin < 0 || count < 0 || begin > digits.size() - count) {
    return absl::InvalidArgumentError(absl::StrCat("MNIST: images [", begin, ", ", begin + count,
                                                   ") must be in [0, ", digits.size(), ")"));
  }
  std::vector<int64_t> which(static_cast<size_t>(count));
  std::iota(which.begin(), which.end(), begin);
  return BatchOf(digits, which);
}

BatchIterator::BatchIterator(const Digits* digits, uint64_t seed)
    : digits_(digits), random_(seed) {}

StatusOr<DigitBatch> BatchIterator::Next(int64_t count) {
  if (count < 1 || digits_->size() == 0) {
    return absl::InvalidArgumentError(absl::StrCat("MNIST: batch size must be >= 1, got ", count,
                                                   " of ", digits_->size(), " images"));
  }
  std::vector<int64_t> which;
  while (static_cast<int64_t>(which.size()) < count) {
    if (next_ == order_.size()) {
      order_.resize(static_cast<size_t>(digits_->size()));
      std::iota(order_.begin(), order_.end(), 0);
      std::shuffle(order_.begin(), order_.end(), random_);
      next_ = 0;
    }
    which.push_back(order_[next_++]);
  }
  return BatchOf(*digits_, which);
}

}  // namespace millrace
