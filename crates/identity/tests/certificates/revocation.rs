//! Revocation lists of ours as OpenSSL sees them, and lists that are not the authority's.

use polis_identity::{
    CertificateAuthority, NodeKey, PEER_AUTHORITY_NAME, ReadRevocationListError, RevocationList, SerialNumber,
    verify_certificate_authority,
};

use crate::openssl::{Kind, OpenSsl, Subject};

#[test]
fn openssl_refuses_who_is_on_the_list_and_nobody_else() {
    let openssl = OpenSsl::new();
    let authority = CertificateAuthority::generate(PEER_AUTHORITY_NAME);
    openssl.write("ca.pem", authority.certificate().pem());
    let certificates = ["first", "second", "third"].map(|name| {
        let certificate = authority.issue_peer(&NodeKey::generate().public());
        openssl.write(&format!("{name}.pem"), certificate.pem());
        certificate
    });
    let revoked: Vec<SerialNumber> = certificates.iter().map(|one| one.serial_number().clone()).collect();
    for (number, count) in [(1, 0), (2, 1), (300, 2)] {
        let list = authority.certificate_revocation_list(number, &revoked[..count]);
        openssl.write("list.pem", list.pem());
        openssl.write("list.der", list.der());
        let shown = openssl.run("crl -in list.pem -CAfile ca.pem -noout -crlnumber -lastupdate -nextupdate");
        for expected in [
            "verify OK".to_owned(),
            format!("crlNumber=0x{number:02X}").replace("0x12C", "0x012C"),
            "lastUpdate=Jan  1 00:00:00 1970 GMT".to_owned(),
            "nextUpdate=Dec 31 23:59:59 9999 GMT".to_owned(),
        ] {
            assert!(shown.contains(&expected), "{expected}\n{shown}");
        }
        openssl.run("crl -in list.der -inform DER -CAfile ca.pem -noout");
        for (index, name) in ["first", "second", "third"].iter().enumerate() {
            let (accepted, text) =
                openssl.try_run(&format!("verify -x509_strict -crl_check -CRLfile list.pem -CAfile ca.pem {name}.pem"));
            assert_eq!(accepted, index >= count, "list {number}, {name}: {text}");
            assert_eq!(text.contains("certificate revoked"), index < count, "list {number}, {name}: {text}");
        }
    }
}

#[test]
fn a_list_comes_back_from_its_bytes() {
    let authority = CertificateAuthority::generate(PEER_AUTHORITY_NAME);
    let revoked = [SerialNumber::random(), SerialNumber::from(1), SerialNumber::from(0x80)];
    let list = authority.certificate_revocation_list(u64::MAX, &revoked);
    let again = RevocationList::read(list.der(), authority.certificate()).unwrap();
    assert_eq!(again, list);
    assert_eq!(again.number(), u64::MAX);
    assert_eq!(again.revoked(), &revoked.into_iter().collect());
}

#[test]
fn a_list_made_by_openssl_is_read() {
    let openssl = OpenSsl::new();
    openssl.key("ca", Kind::Ed25519);
    let extensions = "basicConstraints = critical, CA:TRUE\nkeyUsage = critical, keyCertSign, cRLSign";
    let authority = openssl.self_signed("ca", &Subject::new(&["CN = Polis Peer CA"]), extensions);
    let authority = verify_certificate_authority(authority).unwrap();
    openssl.write("index.txt", "R\t20991231235959Z\t200101000000Z\t4D\tunknown\t/CN=node\n");
    openssl.write("number", "0A\n");
    let configuration = "[ca]\ndefault_ca = authority\n[authority]\ndatabase = index.txt\ndefault_md = default\n";
    let list = |more: &str| {
        openssl.write("ca.cnf", format!("{configuration}{more}\n"));
        openssl.run("ca -gencrl -config ca.cnf -keyfile ca.key -cert ca.pem -crldays 30 -out list.pem");
        openssl.run("crl -in list.pem -outform DER -out list.der");
        RevocationList::read(std::fs::read(openssl.path("list.der")).unwrap(), &authority)
    };
    let found = list("crlnumber = number").unwrap();
    assert_eq!((found.number(), found.revoked()), (10, &[SerialNumber::from(0x4d)].into_iter().collect()));
    let error = list("").unwrap_err();
    assert!(matches!(error, ReadRevocationListError::Number), "{error:?}");
}

#[test]
fn a_list_of_another_authority_or_with_changed_bytes_is_refused() {
    let authority = CertificateAuthority::generate(PEER_AUTHORITY_NAME);
    let other = CertificateAuthority::generate(PEER_AUTHORITY_NAME);
    let list = other.certificate_revocation_list(1, &[SerialNumber::random()]);
    let error = RevocationList::read(list.der(), authority.certificate()).unwrap_err();
    assert!(matches!(error, ReadRevocationListError::NotSignedByAuthority { .. }), "{error:?}");

    let longer = [list.der(), &[0, 0]].concat();
    let error = RevocationList::read(longer, other.certificate()).unwrap_err();
    assert!(matches!(error, ReadRevocationListError::TrailingBytes { found: 2 }), "{error:?}");

    for position in 0..list.der().len() {
        let mut changed = list.der().to_vec();
        changed[position] ^= 1 << (position % 8);
        assert!(RevocationList::read(changed, other.certificate()).is_err(), "byte {position}");
        let cut = &list.der()[..position];
        let error = RevocationList::read(cut, other.certificate()).unwrap_err();
        assert!(matches!(error, ReadRevocationListError::NotARevocationList { .. }), "{position} bytes: {error:?}");
    }
}
