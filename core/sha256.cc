// SPDX-License-Identifier: Apache-2.0
#include "core/sha256.h"

#include <openssl/sha.h>

namespace millrace {

StatusOr<std::string> Sha256(absl::string_view data) {
  std::string digest(SHA256_DIGEST_LENGTH, '\0');
  if (SHA256(reinterpret_cast<const unsigned char*>(data.data()), data.size(),
             reinterpret_cast<unsigned char*>(digest.data())) == nullptr) {
    return Internal("Sha256: OpenSSL must give a digest, got none for ", data.size(), " bytes");
  }
  return digest;
}

}  // namespace millrace
