//! The owner's key file.

use polis_identity::{OwnerKey, ParseOwnerKeyError};

use crate::openssl::{Kind, OpenSsl};

#[test]
fn the_file_is_the_one_of_metropolis() {
    let key = OwnerKey::generate();
    let pem = key.to_owner_pem();
    let lines: Vec<_> = pem.lines().collect();
    assert_eq!(lines[0], "-----BEGIN METROPOLIS INITIAL OWNER PRIVATE KEY-----");
    assert_eq!(lines[lines.len() - 1], "-----END METROPOLIS INITIAL OWNER PRIVATE KEY-----");
    // 64 bytes in base64, in lines of 64 characters: the secret, then the public key.
    assert_eq!(lines[1].len() + lines[2].len(), 88);
    let openssl = OpenSsl::new();
    openssl.write("body.txt", format!("{}\n{}\n", lines[1], lines[2]));
    openssl.run("base64 -d -in body.txt -out body.bin");
    let body = std::fs::read(openssl.path("body.bin")).unwrap();
    assert_eq!((&body[..32], &body[32..]), (&key.secret().expose()[..], &key.public().as_bytes()[..]));
    assert_eq!(OwnerKey::from_pem(&pem).unwrap(), key);
    assert_eq!(OwnerKey::from_pem(&format!("The key of the owner\n{}", &pem[..])).unwrap(), key);
    assert_eq!(OwnerKey::from_pem(&pem.replace('\n', "\r\n")).unwrap(), key);
}

#[test]
fn a_key_made_by_openssl_is_read_too() {
    let openssl = OpenSsl::new();
    openssl.key("owner", Kind::Ed25519);
    let key = OwnerKey::from_pem(&openssl.read("owner.key")).unwrap();
    assert_eq!(*key.pkcs8_pem(), openssl.read("owner.key"));
    openssl.run("pkey -in owner.key -pubout -outform DER -out public.der");
    let public = std::fs::read(openssl.path("public.der")).unwrap();
    assert_eq!(&public[public.len() - 32..], key.public().as_bytes());
}

#[test]
fn what_is_no_owner_key_is_refused_with_the_reason() {
    let openssl = OpenSsl::new();
    openssl.key("ec", Kind::Ec);
    openssl.key("owner", Kind::Ed25519);
    openssl.run("pkey -in owner.key -pubout -out public.pem");
    let label = "METROPOLIS INITIAL OWNER PRIVATE KEY";
    let block = |content: &[u8]| {
        openssl.write("content.bin", content);
        let body = openssl.run("base64 -in content.bin");
        format!("-----BEGIN {label}-----\n{body}-----END {label}-----\n")
    };
    let pair = OwnerKey::generate().to_pair();
    let mut damaged = *pair.expose();
    damaged[3] ^= 4;
    let whole = block(pair.expose());
    let check = |pem: &str, expected: &str| {
        let error = OwnerKey::from_pem(pem).unwrap_err();
        let source = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
        let found = format!("{error}: {source}");
        assert!(found.starts_with(expected), "{pem}\n{found}");
        // An error must never carry the secret itself.
        assert!(!format!("{error:?}").contains(&hex::encode(&pair.expose()[..8])), "{error:?}");
    };
    check("", "the text is not PEM: ");
    check(&whole[..whole.len() / 2], "the text is not PEM: ");
    check(&block(&pair.expose()[..63]), &format!("the {label:?} has the wrong length: expected 64 bytes, found 63"));
    check(&block(&[]), "the text is not PEM: ");
    check(&block(&damaged), &format!("the {label:?} is damaged: the second half of the key says public key"));
    let expected = format!("the PEM block is a \"PUBLIC KEY\" and not a {label:?} (or \"PRIVATE KEY\")");
    check(&openssl.read("public.pem"), &expected);
    check(&openssl.read("ec.key"), "the \"PRIVATE KEY\" is not an Ed25519 key in PKCS#8: ");
    let error = OwnerKey::from_pem(&openssl.read("public.pem")).unwrap_err();
    assert!(matches!(error, ParseOwnerKeyError::Label { found } if found == "PUBLIC KEY"));
}
