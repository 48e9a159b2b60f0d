// SPDX-License-Identifier: Apache-2.0
#include "estimator/columns/vocabulary_size.h"

#include <algorithm>
#include <memory>

#include "core/file_system.h"

namespace millrace {

StatusOr<int64_t> CountVocabularyLines(const std::string& path) {
  MR_ASSIGN_OR_RETURN(const std::unique_ptr<RandomAccessFile> file,
                      FileSystem::Default()->NewRandomAccessFile(path));
  constexpr uint64_t kPieceBytes = uint64_t{1} << 16;
  std::string piece;
  int64_t lines = 0;
  char last = '\n';
  for (uint64_t offset = 0; offset < file->size(); offset += piece.size()) {
    piece.resize(static_cast<size_t>(std::min(kPieceBytes, file->size() - offset)));
    MR_RETURN_IF_ERROR(file->Read(offset, piece.size(), piece.data()));
    lines += std::count(piece.begin(), piece.end(), '\n');
    last = piece.back();
  }
  return lines + (last == '\n' ? 0 : 1);
}

}  // namespace millrace
