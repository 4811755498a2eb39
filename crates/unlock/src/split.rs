//! Splitting a key to the members of a list.

use polis_identity::NodeId;
use rand::CryptoRng;

use crate::sealing::{Binding, Sealing, UnusableShareKey};
use crate::share;
use crate::threshold::NoScheme;
use crate::{ClusterUnlockKey, HeldShare, MemberList, Scheme, Split};

/// Why a key cannot be split to a member list.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum SplitError {
    /// The list has too many voters, or none.
    #[error("the members of epoch {epoch} cannot hold shares")]
    Scheme {
        /// Epoch of the list.
        epoch: crate::Epoch,
        /// Why not.
        #[source]
        source: NoScheme,
    },
    /// The node is not on the list: it has nobody to split its key to.
    #[error("the member list of epoch {epoch} does not name this node")]
    NotAMember {
        /// Epoch of the list.
        epoch: crate::Epoch,
    },
    /// A member has not said to which key its shares are to be encrypted.
    #[error("{0} has not reported a share key yet")]
    NoShareKey(NodeId),
    /// A member has said a key that is none.
    #[error("{node} has reported a share key that is none")]
    ShareKey {
        /// The member.
        node: NodeId,
        /// What is wrong with it.
        #[source]
        source: UnusableShareKey,
    },
}

/// Splits the key of `owner` to the other members of a list, with the scheme that the list asks for
/// ([`Scheme::for_member`]).
///
/// All randomness comes from `random`: the polynomials of the shares and the keys to which HPKE encrypts them.
///
/// # Errors
///
/// When the list does not allow it. Nothing is left out for a member that cannot hold a share: a quorum with it would not open.
pub fn split(
    owner: &NodeId,
    key: &ClusterUnlockKey,
    list: &MemberList,
    sealing: &dyn Sealing,
    random: &mut impl CryptoRng,
) -> Result<Split, SplitError> {
    let epoch = list.epoch();
    let own = list.member(owner).ok_or(SplitError::NotAMember { epoch })?;
    let scheme = Scheme::for_member(list, own.standing).map_err(|source| SplitError::Scheme { epoch, source })?;
    let others: Vec<_> = list.members().iter().filter(|member| member.node_id != *owner).collect();
    let count = u8::try_from(others.len()).expect("a list for which there is a scheme has a few members");
    let mut holders = Vec::new();
    for (member, share) in others.into_iter().zip(share::make(key, scheme, count, random)) {
        let holder = member.node_id;
        let to = member.share_key.ok_or(SplitError::NoShareKey(holder))?;
        let binding = Binding { cluster: *list.cluster_id(), owner: *owner, holder, x: share.x(), epoch };
        let ciphertext = sealing
            .seal(&to, &binding, share.y(), random)
            .map_err(|source| SplitError::ShareKey { node: holder, source })?;
        holders.push(HeldShare { holder, x: share.x(), ciphertext, hash: share.hash() });
    }
    Ok(Split { epoch, scheme, holders, check_value: key.check_value() })
}
