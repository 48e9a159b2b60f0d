// SPDX-License-Identifier: Apache-2.0
#include "net/testing/test_certificates.h"

#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>

#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

constexpr int64_t kDaySeconds = 24 * 60 * 60;

EVP_PKEY* NewKey() {
  EVP_PKEY* const key = EVP_EC_gen("P-256");
  EXPECT_NE(key, nullptr);
  return key;
}

void AddExtension(X509* certificate, X509* issuer, int nid, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* const extension = X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str());
  ASSERT_NE(extension, nullptr) << value;
  EXPECT_EQ(X509_add_ext(certificate, extension, -1), 1);
  X509_EXTENSION_free(extension);
}

// Signed by `issuer_key`; `issuer` null: by itself.
X509* NewCertificate(const std::string& name, EVP_PKEY* key, X509* issuer, EVP_PKEY* issuer_key,
                     int64_t begins, int64_t seconds, const std::string& host) {
  static int64_t serial = 1;
  X509* const certificate = X509_new();
  X509_set_version(certificate, 2);
  ASN1_INTEGER_set_int64(X509_get_serialNumber(certificate), serial++);
  X509_gmtime_adj(X509_getm_notBefore(certificate), begins);
  X509_gmtime_adj(X509_getm_notAfter(certificate), seconds);
  X509_NAME* const subject = X509_get_subject_name(certificate);
  X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
  if (issuer == nullptr) issuer = certificate;
  X509_set_issuer_name(certificate, X509_get_subject_name(issuer));
  X509_set_pubkey(certificate, key);
  AddExtension(certificate, issuer, NID_basic_constraints,
               issuer == certificate ? "critical,CA:TRUE" : "critical,CA:FALSE");
  if (!host.empty()) AddExtension(certificate, issuer, NID_subject_alt_name, host);
  EXPECT_GT(X509_sign(certificate, issuer_key, EVP_sha256()), 0);
  return certificate;
}

std::string Pem(X509* certificate) {
  BIO* const bio = BIO_new(BIO_s_mem());
  EXPECT_EQ(PEM_write_bio_X509(bio, certificate), 1);
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio, &data);
  std::string text(data, static_cast<size_t>(size));
  BIO_free(bio);
  return text;
}
std::string Pem(EVP_PKEY* key) {
  BIO* const bio = BIO_new(BIO_s_mem());
  EXPECT_EQ(PEM_write_bio_PrivateKey(bio, key, nullptr, nullptr, 0, nullptr, nullptr), 1);
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio, &data);
  std::string text(data, static_cast<size_t>(size));
  BIO_free(bio);
  return text;
}

}  // namespace

struct TestAuthority::Keys {
  EVP_PKEY* key;
  X509* certificate;
};

TestAuthority::TestAuthority(std::string directory, std::string name)
    : directory_(std::move(directory)),
      name_(std::move(name)),
      ca_file_(absl::StrCat(directory_, "/", name_, ".ca.pem")),
      keys_(new Keys) {
  keys_->key = NewKey();
  keys_->certificate =
      NewCertificate(name_, keys_->key, nullptr, keys_->key, -kDaySeconds, kDaySeconds, "");
  WriteTestFile(ca_file_, Pem(keys_->certificate), 0644);
}

TestAuthority::~TestAuthority() {
  X509_free(keys_->certificate);
  EVP_PKEY_free(keys_->key);
  delete keys_;
}

TestCertificate TestAuthority::Sign(const std::string& name, const std::string& host,
                                    int64_t seconds, int64_t begins) {
  EVP_PKEY* const key = NewKey();
  X509* const certificate =
      NewCertificate(name, key, keys_->certificate, keys_->key, begins, seconds, host);
  const std::string stem = absl::StrCat(directory_, "/", name_, ".", name);
  const TestCertificate files{stem + ".pem", stem + ".key"};
  WriteTestFile(files.certificate_file, Pem(certificate), 0644);
  WriteTestFile(files.key_file, Pem(key), 0600);
  X509_free(certificate);
  EVP_PKEY_free(key);
  return files;
}

void WriteTestFile(const std::string& path, const std::string& text, int mode) {
  std::FILE* const file = std::fopen(path.c_str(), "w");
  ASSERT_NE(file, nullptr) << path;
  EXPECT_EQ(std::fwrite(text.data(), 1, text.size(), file), text.size());
  EXPECT_EQ(std::fclose(file), 0);
  EXPECT_EQ(::chmod(path.c_str(), static_cast<mode_t>(mode)), 0);
}

}  // namespace millrace
