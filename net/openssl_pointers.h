// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_NET_OPENSSL_POINTERS_H_
#define MILLRACE_NET_OPENSSL_POINTERS_H_

// Owners of OpenSSL's objects.

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/x509.h>

#include <memory>

namespace millrace {

// Frees with one of OpenSSL's functions.
template <auto kFree>
struct OpensslFreer {
  template <typename T>
  void operator()(T* value) const {
    kFree(value);
  }
};
using BioPtr = std::unique_ptr<BIO, OpensslFreer<BIO_free_all>>;
using CertificatePtr = std::unique_ptr<X509, OpensslFreer<X509_free>>;
using KeyPtr = std::unique_ptr<EVP_PKEY, OpensslFreer<EVP_PKEY_free>>;

}  // namespace millrace

#endif  // MILLRACE_NET_OPENSSL_POINTERS_H_
