#include "kvcache/record_cipher.h"

#include <openssl/evp.h>

#include <memory>

#include "kvcache/store_folders.h"

namespace deepinfer {
namespace {

// The header up to the section table, whose checksums are of the encrypted bytes.
constexpr int kAuthenticatedBytes = 120;
static_assert(kAuthenticatedBytes == offsetof(RecordHeader, sections));

using CipherContext = std::unique_ptr<EVP_CIPHER_CTX, decltype(&EVP_CIPHER_CTX_free)>;

const unsigned char* Bytes(std::span<const std::byte> bytes) {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}
unsigned char* Bytes(std::span<std::byte> bytes) {
  return reinterpret_cast<unsigned char*>(bytes.data());
}

}  // namespace

Result<RecordNonce> NewNonce() {
  RecordNonce nonce{};
  DI_RETURN_IF_ERROR(FillRandom(nonce));
  return nonce;
}

Status SealEncryptedRecord(const KvBlockLayout& layout, RecordHeader header, const TenantKey& key,
                           const RecordNonce& nonce, std::span<std::byte> record) {
  header.flags |= kRecordEncrypted;
  header.nonce = nonce;
  FillLayoutFields(layout, &header);
  const auto payload =
      record.subspan(kRecordHeaderBytes, static_cast<size_t>(layout.payload_bytes()));
  const CipherContext cipher(EVP_CIPHER_CTX_new(), EVP_CIPHER_CTX_free);
  int count = 0;
  const bool ok =
      cipher != nullptr &&
      EVP_EncryptInit_ex(cipher.get(), EVP_aes_256_gcm(), nullptr, key.data(), nonce.data()) == 1 &&
      EVP_EncryptUpdate(cipher.get(), nullptr, &count, Bytes(AsBytes(header)),
                        kAuthenticatedBytes) == 1 &&
      EVP_EncryptUpdate(cipher.get(), Bytes(payload), &count, Bytes(payload),
                        static_cast<int>(payload.size())) == 1 &&
      EVP_EncryptFinal_ex(cipher.get(), Bytes(payload), &count) == 1 &&
      EVP_CIPHER_CTX_ctrl(cipher.get(), EVP_CTRL_GCM_GET_TAG, static_cast<int>(header.tag.size()),
                          header.tag.data()) == 1;
  if (!ok) return Internal("AES-256-GCM does not work");
  SealRecord(layout, header, record);
  return OkStatus();
}

bool DecryptRecord(const KvBlockLayout& layout, const TenantKey& key, std::span<std::byte> record) {
  RecordHeader header = HeaderOf(record);
  const auto payload =
      record.subspan(kRecordHeaderBytes, static_cast<size_t>(layout.payload_bytes()));
  const CipherContext cipher(EVP_CIPHER_CTX_new(), EVP_CIPHER_CTX_free);
  int count = 0;
  return cipher != nullptr &&
         EVP_DecryptInit_ex(cipher.get(), EVP_aes_256_gcm(), nullptr, key.data(),
                            header.nonce.data()) == 1 &&
         EVP_DecryptUpdate(cipher.get(), nullptr, &count, Bytes(AsBytes(header)),
                           kAuthenticatedBytes) == 1 &&
         EVP_DecryptUpdate(cipher.get(), Bytes(payload), &count, Bytes(payload),
                           static_cast<int>(payload.size())) == 1 &&
         EVP_CIPHER_CTX_ctrl(cipher.get(), EVP_CTRL_GCM_SET_TAG,
                             static_cast<int>(header.tag.size()), header.tag.data()) == 1 &&
         EVP_DecryptFinal_ex(cipher.get(), Bytes(payload), &count) == 1;
}

}  // namespace deepinfer
