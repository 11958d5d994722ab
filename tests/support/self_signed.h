// A certificate that is its own authority.
// Thread rule: pure function.
#pragma once

#include <openssl/bio.h>
#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <memory>
#include <string>

#include "cluster/session.h"

namespace deepinfer {

// alternative_names: as in openssl.cnf.
inline SecurityPtr SelfSigned(const char* alternative_names = "DNS:deepinfer") {
  const std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> key(EVP_EC_gen("P-256"), EVP_PKEY_free);
  const std::unique_ptr<X509, decltype(&X509_free)> cert(X509_new(), X509_free);
  X509_set_version(cert.get(), 2);
  ASN1_INTEGER_set(X509_get_serialNumber(cert.get()), 1);
  X509_gmtime_adj(X509_getm_notBefore(cert.get()), -3600);
  X509_gmtime_adj(X509_getm_notAfter(cert.get()), 24 * 3600);
  X509_set_pubkey(cert.get(), key.get());
  X509_NAME* const name = X509_get_subject_name(cert.get());
  const auto* const text = reinterpret_cast<const unsigned char*>("deepinfer");
  X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, text, -1, -1, 0);
  X509_set_issuer_name(cert.get(), name);
  for (const auto& [kind, value] : {std::pair(NID_subject_alt_name, alternative_names),
                                    std::pair(NID_basic_constraints, "critical,CA:TRUE")}) {
    X509_EXTENSION* const extension = X509V3_EXT_conf_nid(nullptr, nullptr, kind, value);
    X509_add_ext(cert.get(), extension, -1);
    X509_EXTENSION_free(extension);
  }
  X509_sign(cert.get(), key.get(), EVP_sha256());
  const auto pem = [](auto write) {
    const std::unique_ptr<BIO, decltype(&BIO_free)> out(BIO_new(BIO_s_mem()), BIO_free);
    write(out.get());
    char* data = nullptr;
    const long size = BIO_get_mem_data(out.get(), &data);
    return std::string(data, static_cast<size_t>(size));
  };
  SessionSecurity security;
  security.certificate = pem([&](BIO* out) { PEM_write_bio_X509(out, cert.get()); });
  security.key = pem([&](BIO* out) {
    PEM_write_bio_PKCS8PrivateKey(out, key.get(), nullptr, nullptr, 0, nullptr, nullptr);
  });
  security.authority = security.certificate;
  return std::make_shared<SessionSecurity>(std::move(security));
}

}  // namespace deepinfer
