// SPDX-License-Identifier: Apache-2.0
#include "formats/npy.h"

#include <complex>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/resource_handle.h"
#include "core/testing/shared_data.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

using absl::StatusCode;

// A file of this version with this header and data, as numpy lays it out.
std::string File(int version, std::string header, const std::string& data) {
  header += '\n';
  std::string file = "\x93NUMPY";
  file += static_cast<char>(version);
  file += '\0';
  const size_t width = version == 1 ? 2 : 4;
  for (size_t i = 0; i < width; ++i) file += static_cast<char>(header.size() >> (8 * i) & 0xff);
  return file + header + data;
}

std::string Described(const std::string& descr, const std::string& shape, const std::string& data,
                      bool fortran = false) {
  return File(1,
              absl::StrCat("{'descr': '", descr, "', 'fortran_order': ", fortran ? "True" : "False",
                           ", 'shape': ", shape, ", }"),
              data);
}

std::string TempPath(const std::string& name) {
  return JoinPath(::testing::TempDir(), absl::StrCat("npy_test_", name));
}

// Without the syncs that make thousands of small files slow.
Status WriteQuickly(const std::string& path, absl::string_view bytes) {
  MR_ASSIGN_OR_RETURN(const auto file, FileSystem::Posix()->NewWritableFile(path));
  MR_RETURN_IF_ERROR(file->Append(bytes));
  return file->Close();
}

TEST(NpyTest, WritesTheBytesThatNumpyWrites) {
  // np.save of np.array([[1, 2]], '<i2').
  std::string want("\x93NUMPY\x01\x00\x76\x00", 10);
  want += "{'descr': '<i2', 'fortran_order': False, 'shape': (1, 2), }";
  want.append(127 - want.size(), ' ');
  want += '\n';
  want += std::string("\x01\x00\x02\x00", 4);
  ASSERT_OK_AND_ASSIGN(const std::string got, FormatNpy(TensorOf<int16_t>({1, 2}, {1, 2})));
  EXPECT_EQ(got, want);
  ASSERT_OK_AND_ASSIGN(const std::string vector, FormatNpy(TensorOf<float>({3}, {1, 2, 3})));
  EXPECT_TRUE(
      absl::StrContains(vector, "{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }"));
  ASSERT_OK_AND_ASSIGN(const std::string scalar, FormatNpy(TensorOf<bool>({}, {true})));
  EXPECT_TRUE(absl::StrContains(scalar, "{'descr': '|b1', 'fortran_order': False, 'shape': (), }"));
  EXPECT_EQ(scalar.size(), 129u);
}

TEST(NpyTest, EveryTypeOfNumpyComesBack) {
  const std::vector<Tensor> tensors = {
      TensorOf<bool>({2}, {true, false}),
      TensorOf<int8_t>({2}, {-128, 127}),
      TensorOf<uint8_t>({2}, {0, 255}),
      TensorOf<int16_t>({2}, {-32768, 32767}),
      TensorOf<uint16_t>({1}, {65535}),
      TensorOf<int32_t>({2, 2}, {1, -2, 3, -4}),
      TensorOf<uint32_t>({1}, {4294967295u}),
      TensorOf<int64_t>({}, {-5000000000}),
      TensorOf<uint64_t>({1}, {18446744073709551615u}),
      TensorOf<Half>({2}, {Half{0x3c00}, Half{0xfc00}}),
      TensorOf<float>({2, 0, 3}, {}),
      TensorOf<float>({3}, {1.5f, -0.f, 1e-45f}),
      TensorOf<double>({1}, {0.1}),
      TensorOf<std::complex<float>>({1}, {{1, -2}}),
      TensorOf<std::complex<double>>({1}, {{0.5, 2}}),
      TensorOf<std::string>({2, 2}, {"a", "", "b\xff\n", "long one"}),
      TensorOf<std::string>({1}, {""}),
  };
  for (const Tensor& tensor : tensors) {
    ASSERT_OK_AND_ASSIGN(const std::string bytes, FormatNpy(tensor));
    ASSERT_OK_AND_ASSIGN(const Tensor got, ParseNpy(bytes));
    ExpectTensorEqual(got, tensor);
  }
}

TEST(NpyTest, TypesThatNumpyLacksBecomeTheNearestOne) {
  ASSERT_OK_AND_ASSIGN(std::string bytes, FormatNpy(TensorOf<Bfloat16>({1}, {Bfloat16{0x3fc0}})));
  ASSERT_OK_AND_ASSIGN(Tensor got, ParseNpy(bytes));
  ExpectTensorEqual(got, TensorOf<float>({1}, {1.5f}));
  ASSERT_OK_AND_ASSIGN(bytes, FormatNpy(TensorOf<QInt32>({1}, {QInt32{-7}})));
  ASSERT_OK_AND_ASSIGN(got, ParseNpy(bytes));
  ExpectTensorEqual(got, TensorOf<int32_t>({1}, {-7}));
  ASSERT_OK_AND_ASSIGN(bytes, FormatNpy(TensorOf<QUInt8>({1}, {QUInt8{200}})));
  ASSERT_OK_AND_ASSIGN(got, ParseNpy(bytes));
  ExpectTensorEqual(got, TensorOf<uint8_t>({1}, {200}));
  EXPECT_STATUS(FormatNpy(TensorOf<ResourceHandle>({}, {ResourceHandle()}), "'v:0'"),
                StatusCode::kUnimplemented,
                "npy: 'v:0' must be of a type that numpy has, got resource");
  EXPECT_STATUS(FormatNpy(Tensor()), StatusCode::kUnimplemented, "got no value");
}

TEST(NpyTest, ReadsBothByteOrders) {
  const std::string data("\x01\x02\x03\x04", 4);
  ASSERT_OK_AND_ASSIGN(Tensor got, ParseNpy(Described("<u2", "(2,)", data)));
  ExpectTensorEqual(got, TensorOf<uint16_t>({2}, {0x0201, 0x0403}));
  ASSERT_OK_AND_ASSIGN(got, ParseNpy(Described(">u2", "(2,)", data)));
  ExpectTensorEqual(got, TensorOf<uint16_t>({2}, {0x0102, 0x0304}));
  ASSERT_OK_AND_ASSIGN(got, ParseNpy(Described("=u2", "(2,)", data)));
  ExpectTensorEqual(got, TensorOf<uint16_t>({2}, {0x0201, 0x0403}));
  // 1 - 2i: each half is swapped on its own.
  const std::string complex("\x3f\x80\x00\x00\xc0\x00\x00\x00", 8);
  ASSERT_OK_AND_ASSIGN(got, ParseNpy(Described(">c8", "()", complex)));
  ExpectTensorEqual(got, TensorOf<std::complex<float>>({}, {{1, -2}}));
}

TEST(NpyTest, FortranOrderIsTurnedIntoRowMajor) {
  // [[1 2 3] [4 5 6]] column by column.
  ASSERT_OK_AND_ASSIGN(Tensor got,
                       ParseNpy(Described("|i1", "(2, 3)", std::string("\1\4\2\5\3\6"), true)));
  ExpectTensorEqual(got, TensorOf<int8_t>({2, 3}, {1, 2, 3, 4, 5, 6}));
  // Element [i][j][k] is stored at i + 2 j + 4 k.
  ASSERT_OK_AND_ASSIGN(got, ParseNpy(Described("|S1", "(2, 2, 2)", "abcdefgh", true)));
  ExpectTensorEqual(got,
                    TensorOf<std::string>({2, 2, 2}, {"a", "e", "c", "g", "b", "f", "d", "h"}));
}

TEST(NpyTest, ReadsAllVersionsAndHeadersOfOldWriters) {
  const std::string header = "{'descr': '|u1', 'fortran_order': False, 'shape': (1,), }";
  for (int version : {1, 2, 3}) {
    ASSERT_OK_AND_ASSIGN(const Tensor got, ParseNpy(File(version, header, "\x07")));
    ExpectTensorEqual(got, TensorOf<uint8_t>({1}, {7}));
  }
  ASSERT_OK_AND_ASSIGN(
      const Tensor got,
      ParseNpy(File(1, "{ \"shape\":(1L,),\"fortran_order\":False,\"descr\":\"|u1\" }  ", "\x07")));
  ExpectTensorEqual(got, TensorOf<uint8_t>({1}, {7}));
}

TEST(NpyTest, TextBecomesUtf8) {
  // "aé" and "€😀", two code points each.
  const std::string little("a\0\0\0\xe9\0\0\0\xac\x20\0\0\0\xf6\x01\0", 16);
  ASSERT_OK_AND_ASSIGN(Tensor got, ParseNpy(Described("<U2", "(2,)", little)));
  ExpectTensorEqual(got, TensorOf<std::string>({2}, {"a\xc3\xa9", "\xe2\x82\xac\xf0\x9f\x98\x80"}));
  const std::string big("\0\0\0a\0\0\0\0", 8);
  ASSERT_OK_AND_ASSIGN(got, ParseNpy(Described(">U2", "()", big)));
  ExpectTensorEqual(got, TensorOf<std::string>({}, {"a"}));
}

TEST(NpyTest, BytesOfABooleanOtherThanOneAreTrue) {
  ASSERT_OK_AND_ASSIGN(const Tensor got,
                       ParseNpy(Described("|b1", "(2,)", std::string("\0\2", 2))));
  ExpectTensorEqual(got, TensorOf<bool>({2}, {false, true}));
}

TEST(NpyTest, BadFilesAreRefusedWithTheReason) {
  const std::string good = Described("<f4", "(2,)", "abcdefgh");
  struct Case {
    std::string bytes;
    StatusCode code;
    std::string message;
  };
  const std::vector<Case> cases = {
      {"", StatusCode::kInvalidArgument, "file must begin with \\x93NUMPY, got ''"},
      {"PK\x03\x04zip", StatusCode::kInvalidArgument, "got 'PK\\x03\\x04zi'"},
      {good.substr(0, 9), StatusCode::kDataLoss, "ends inside its header"},
      {good.substr(0, 30), StatusCode::kDataLoss, "ends inside its header"},
      {good.substr(0, good.size() - 1), StatusCode::kDataLoss, "needs 8 bytes of data, got 7"},
      {std::string("\x93NUMPY\x04\0\0\0", 10), StatusCode::kInvalidArgument, "got 4.0"},
      {std::string("\x93NUMPY\x02\0\xff\xff\xff\x7f", 12), StatusCode::kInvalidArgument,
       "header must have at most 1048576 bytes, got 2147483647"},
      {Described("|O", "(1,)", "x"), StatusCode::kInvalidArgument, "must not be a Python object"},
      {Described("<f16", "(1,)", "x"), StatusCode::kInvalidArgument, "got '<f16'"},
      {Described("<M8[ns]", "(1,)", "x"), StatusCode::kInvalidArgument, "got '<M8[ns]'"},
      {Described("", "(1,)", "x"), StatusCode::kInvalidArgument, "got ''"},
      {Described("<f", "(1,)", "x"), StatusCode::kInvalidArgument, "got '<f'"},
      {Described("<f-4", "(1,)", "x"), StatusCode::kInvalidArgument, "got '<f-4'"},
      {Described("<f4", "(-1,)", "x"), StatusCode::kInvalidArgument, "a dimension, got '-1"},
      {Described("<f4", "(99999999999999999999,)", "x"), StatusCode::kInvalidArgument,
       "a dimension"},
      {Described("<f4", "(4294967296, 4294967296)", "x"), StatusCode::kInvalidArgument, "npy: "},
      {Described("<f8", "(1000000000,)", "x"), StatusCode::kDataLoss,
       "needs 8000000000 bytes of data, got 1"},
      {Described("|S0", "(1000000000,)", "x"), StatusCode::kInvalidArgument, "must have data"},
      {Described("|S1099511627776", "(1099511627776,)", "x"), StatusCode::kInvalidArgument,
       "too large"},
      {Described("<U1", "(1,)", std::string("\0\xd8\0\0", 4)), StatusCode::kInvalidArgument,
       "Unicode code points, got 55296"},
      {Described("<U1", "(1,)", std::string("\0\0\x11\0", 4)), StatusCode::kInvalidArgument,
       "got 1114112"},
      {File(1, "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,), }", "abcd"),
       StatusCode::kInvalidArgument, "got a structure"},
      {File(1, "{'descr': '<f4', 'shape': (1,), }", "abcd"), StatusCode::kInvalidArgument,
       "must have 'descr', 'fortran_order' and 'shape'"},
      {File(1, "{'descr': '<f4', 'fortran_order': 0, 'shape': (1,), }", "abcd"),
       StatusCode::kInvalidArgument, "True or False"},
      {File(1, "{'more': '<f4'}", ""), StatusCode::kInvalidArgument, "got 'more'"},
      {File(1, "{'descr': '<f4", ""), StatusCode::kInvalidArgument, "header must have"},
      {File(1, "(1, 2)", ""), StatusCode::kInvalidArgument, "header must have '{'"},
      {File(1, "{'descr': '|u1', 'fortran_order': False, 'shape': (1,)} x", "a"),
       StatusCode::kInvalidArgument, "the end of the header"},
  };
  for (const Case& c : cases) EXPECT_STATUS(ParseNpy(c.bytes), c.code, c.message);
}

TEST(NpyTest, EveryTruncationOfAFileIsAnError) {
  ASSERT_OK_AND_ASSIGN(const std::string bytes, FormatNpy(TensorOf<int32_t>({2}, {1, 2})));
  for (size_t n = 0; n < bytes.size(); ++n) {
    EXPECT_FALSE(ParseNpy(absl::string_view(bytes).substr(0, n)).ok()) << n;
  }
}

TEST(NpyTest, FilesAreNamedInErrors) {
  const std::string path = TempPath("a.npy");
  ASSERT_OK(WriteNpy(FileSystem::Posix(), path, TensorOf<double>({2}, {0.25, 4})));
  ASSERT_OK_AND_ASSIGN(const Tensor got, ReadNpy(FileSystem::Posix(), path));
  ExpectTensorEqual(got, TensorOf<double>({2}, {0.25, 4}));
  ASSERT_OK(WriteFileAtomically(FileSystem::Posix(), path, "text"));
  EXPECT_STATUS(ReadNpy(FileSystem::Posix(), path), StatusCode::kInvalidArgument, path);
  EXPECT_STATUS(ReadNpy(FileSystem::Posix(), TempPath("missing.npy")), StatusCode::kNotFound,
                "missing.npy");
}

TEST(NpzTest, ArraysComeBackInOrderStoredOrDeflated) {
  ASSERT_OK_AND_ASSIGN(const Tensor zeros,
                       Tensor::Zeros(DT_FLOAT, Shape::Make({100, 100}).value()));
  const NamedArrays arrays = {{"dense/kernel:0", TensorOf<float>({2}, {1, 2})},
                              {"a", TensorOf<std::string>({1}, {"x"})},
                              {"zeros", zeros}};
  const std::string path = TempPath("order.npz");
  uint64_t sizes[2];
  for (int i = 0; i < 2; ++i) {
    ASSERT_OK(WriteNpz(FileSystem::Posix(), path, arrays,
                       i == 0 ? NpzCompression::kStored : NpzCompression::kDeflate));
    ASSERT_OK_AND_ASSIGN(sizes[i], FileSystem::Posix()->GetFileSize(path));
    ASSERT_OK_AND_ASSIGN(const NamedArrays got, ReadNpz(FileSystem::Posix(), path));
    ASSERT_EQ(got.size(), arrays.size());
    for (size_t k = 0; k < arrays.size(); ++k) {
      EXPECT_EQ(got[k].first, arrays[k].first);
      ExpectTensorEqual(got[k].second, arrays[k].second);
    }
  }
  EXPECT_GT(sizes[0], 40000u);
  EXPECT_LT(sizes[1], 2000u);
}

TEST(NpzTest, TheSameArraysGiveTheSameBytes) {
  const NamedArrays arrays = {{"x", TensorOf<float>({2}, {1, 2})}};
  const std::string a = TempPath("same_a.npz"), b = TempPath("same_b.npz");
  ASSERT_OK(WriteNpz(FileSystem::Posix(), a, arrays));
  ASSERT_OK(WriteNpz(FileSystem::Posix(), b, arrays));
  ASSERT_OK_AND_ASSIGN(const std::string bytes_a, ReadFileToString(FileSystem::Posix(), a));
  ASSERT_OK_AND_ASSIGN(const std::string bytes_b, ReadFileToString(FileSystem::Posix(), b));
  EXPECT_EQ(bytes_a, bytes_b);
}

TEST(NpzTest, AnEmptyArchiveHasNoArrays) {
  const std::string path = TempPath("empty.npz");
  ASSERT_OK(WriteNpz(FileSystem::Posix(), path, {}));
  ASSERT_OK_AND_ASSIGN(const NamedArrays got, ReadNpz(FileSystem::Posix(), path));
  EXPECT_TRUE(got.empty());
}

TEST(NpzTest, TwoArraysOfOneNameAreRefused) {
  const Tensor one = TensorOf<float>({}, {1});
  EXPECT_STATUS(WriteNpz(FileSystem::Posix(), TempPath("twice.npz"), {{"a", one}, {"a", one}}),
                StatusCode::kAlreadyExists, "array names must differ, got 'a' twice");
}

TEST(NpzTest, DamageIsFound) {
  const std::string path = TempPath("damaged.npz");
  const NamedArrays arrays = {{"abc", TensorOf<float>({3}, {1, 2, 3})}};
  ASSERT_OK(WriteNpz(FileSystem::Posix(), path, arrays));
  ASSERT_OK_AND_ASSIGN(const std::string bytes, ReadFileToString(FileSystem::Posix(), path));
  for (size_t n = 0; n < bytes.size(); n += 7) {
    ASSERT_OK(WriteQuickly(path, bytes.substr(0, n)));
    EXPECT_FALSE(ReadNpz(FileSystem::Posix(), path).ok()) << "cut at " << n;
  }
  // A flipped bit of the array itself fails the archive's checksum.
  const size_t data = bytes.find("\n", bytes.find("NUMPY")) + 1;
  std::string flipped = bytes;
  flipped[data + 3] = static_cast<char>(flipped[data + 3] ^ 1);
  ASSERT_OK(WriteQuickly(path, flipped));
  EXPECT_STATUS(ReadNpz(FileSystem::Posix(), path), StatusCode::kDataLoss, "array 'abc'");
  // Any other flipped byte: an error or the same array, never a crash.
  for (size_t i = 0; i < bytes.size(); ++i) {
    flipped = bytes;
    flipped[i] = static_cast<char>(flipped[i] ^ 0x55);
    ASSERT_OK(WriteQuickly(path, flipped));
    const StatusOr<NamedArrays> got = ReadNpz(FileSystem::Posix(), path);
    if (got.ok() && !got->empty()) ExpectTensorEqual(got->at(0).second, arrays[0].second);
  }
}

TEST(NpyTest, LengthsRestoreTrailingNuls) {
  const std::string nul("a\0\0", 3);
  const Tensor strings = TensorOf<std::string>({2}, {nul, "bcd"});
  ASSERT_OK_AND_ASSIGN(const Tensor lengths, LengthsOf(strings));
  ExpectTensorEqual(lengths, TensorOf<int64_t>({2}, {3, 3}));
  ASSERT_OK_AND_ASSIGN(const std::string bytes, FormatNpy(strings));
  ASSERT_OK_AND_ASSIGN(const Tensor cut, ParseNpy(bytes));
  EXPECT_EQ(cut.flat<std::string>()[0], "a");
  ASSERT_OK_AND_ASSIGN(const Tensor restored, WithLengths(cut, lengths));
  ExpectTensorEqual(restored, strings);

  EXPECT_STATUS(LengthsOf(lengths), StatusCode::kInvalidArgument, "got int64");
  EXPECT_STATUS(WithLengths(strings, TensorOf<int64_t>({1}, {1})), StatusCode::kInvalidArgument,
                "got int64[1] for string[2]");
  EXPECT_STATUS(WithLengths(strings, TensorOf<int64_t>({2}, {1, -1})), StatusCode::kInvalidArgument,
                "lengths[1]");
  EXPECT_STATUS(WithLengths(strings, TensorOf<int64_t>({2}, {6, 5}), 10),
                StatusCode::kInvalidArgument, "lengths[1]");
}

TEST(NpyTest, ReadsAFileThatNumpyWrote) {
  const std::string path = SharedDataPath("npy/mnist_softmax.serving_default.in.x.npy");
  if (path.empty())
    GTEST_SKIP() << "MILLRACE_SHARED has no npy/mnist_softmax.serving_default.in.x.npy";
  ASSERT_OK_AND_ASSIGN(const Tensor got, ReadNpy(FileSystem::Posix(), path));
  EXPECT_EQ(got.dtype(), DT_FLOAT);
  EXPECT_EQ(got.shape().ToString(), "[4,784]");
  // Written again, the file is the same byte for byte.
  ASSERT_OK_AND_ASSIGN(const std::string bytes, ReadFileToString(FileSystem::Posix(), path));
  ASSERT_OK_AND_ASSIGN(const std::string again, FormatNpy(got));
  EXPECT_EQ(bytes, again);
}

}  // namespace
}  // namespace millrace
