#pragma once

#include <string>
#include <string_view>

namespace levin {

/// Environment variables that give the secret of a job: itself, or the path of a file that only its user can read.
constexpr const char* kJobSecretVariable = "LEVIN_JOB_SECRET";
constexpr const char* kJobSecretFileVariable = "LEVIN_JOB_SECRET_FILE";

/// Returns what proves that a process belongs to this job: what LEVIN_JOB_SECRET or the file LEVIN_JOB_SECRET_FILE
/// says, else what make_job_secret drew; empty where there is none. Throws ConfigError for a secret of less than 16
/// characters and for a file that others can read or that is not this user's.
std::string job_secret();

/// Returns job_secret(), and draws one of 256 bits first where none was given. For the process that starts the others,
/// which hands it on to them.
std::string make_job_secret();

/// Random bytes of the system's generator. Throws levin::Error.
std::string random_bytes(size_t count);

/// Returns the 32 bytes of HMAC-SHA-256: a proof that one knows the secret, bound to `message`, which says nothing of
/// it.
std::string proof_of(std::string_view secret, std::string_view message);

/// Compares two proofs in a time that does not depend on where they differ.
bool same_proof(std::string_view a, std::string_view b);

}  // namespace levin
