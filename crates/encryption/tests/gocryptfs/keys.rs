//! Two keys at most open a partition, and there is always one that does.

use polis_storage::data::{DataError, DataPartition as _};

use crate::common::{Home, World, can_run, keys};

async fn opening(world: &World, candidates: &[u8]) -> Vec<u8> {
    let mut found = Vec::new();
    for candidate in candidates {
        if world.data.test_open(&keys(*candidate)).await.unwrap() {
            found.push(*candidate);
        }
    }
    found
}

#[tokio::test]
async fn a_key_is_replaced_while_the_partition_is_open() {
    if !can_run() {
        return;
    }
    let home = Home::new();
    let world = home.world();
    world.born(&keys(1)).await;
    world.write("data/node/file", b"kept");
    assert_eq!(opening(&world, &[1, 2, 3]).await, [1]);
    world.data.add_key(&keys(1), &keys(2)).await.unwrap();
    world.data.add_key(&keys(1), &keys(2)).await.unwrap();
    assert_eq!(opening(&world, &[1, 2, 3]).await, [1, 2]);
    for key in [1, 2] {
        let again = home.world();
        world.data.close().await.unwrap();
        again.open(&keys(key)).await.unwrap();
        assert_eq!(again.read("data/node/file"), b"kept", "both open the same");
        again.data.close().await.unwrap();
        world.open(&keys(1)).await.unwrap();
    }
    world.data.remove_others(&keys(2)).await.unwrap();
    world.data.remove_others(&keys(2)).await.unwrap();
    assert_eq!(opening(&world, &[1, 2, 3]).await, [2]);
    assert_eq!(world.read("data/node/file"), b"kept", "what is open stays open");
    world.data.close().await.unwrap();
    assert!(matches!(world.open(&keys(1)).await, Err(DataError::WrongKeys { .. })));
    world.open(&keys(2)).await.unwrap();
    world.data.close().await.unwrap();
}

#[tokio::test]
async fn the_last_key_stays_and_a_wrong_one_changes_nothing() {
    if !can_run() {
        return;
    }
    let home = Home::new();
    let world = home.world();
    world.born(&keys(1)).await;
    let wrong = world.data.add_key(&keys(3), &keys(2)).await;
    assert!(matches!(wrong, Err(DataError::WrongKeys { .. })), "{wrong:?}");
    let wrong = world.data.remove_others(&keys(2)).await;
    assert!(matches!(wrong, Err(DataError::WrongKeys { .. })), "{wrong:?}");
    world.data.remove_others(&keys(1)).await.unwrap();
    assert_eq!(opening(&world, &[1, 2, 3]).await, [1]);
    // A change that was given up leaves a key that nobody has: the next change takes its place.
    world.data.add_key(&keys(1), &keys(2)).await.unwrap();
    world.data.add_key(&keys(1), &keys(3)).await.unwrap();
    assert_eq!(opening(&world, &[1, 2, 3]).await, [1, 3]);
    // Or it is removed, by whoever does not know it.
    assert_eq!(world.data.count_keys().await.unwrap(), 2);
    world.data.remove_others(&keys(1)).await.unwrap();
    assert_eq!((world.data.count_keys().await.unwrap(), opening(&world, &[1, 2, 3]).await), (1, vec![1]));
    world.data.close().await.unwrap();
}

#[tokio::test]
async fn a_slot_that_is_damaged_is_named_and_the_other_one_still_opens() {
    if !can_run() {
        return;
    }
    let home = Home::new();
    let world = home.world();
    world.born(&keys(1)).await;
    world.data.add_key(&keys(1), &keys(2)).await.unwrap();
    world.data.close().await.unwrap();
    std::fs::write(home.path().join("encrypted/slot.0"), "{").unwrap();
    let error = world.open(&keys(1)).await.unwrap_err();
    assert!(matches!(error, DataError::Tool { action: "mounting", .. }), "{error:?}");
    world.open(&keys(2)).await.unwrap();
    world.data.close().await.unwrap();
    for slot in ["slot.0", "slot.1"] {
        std::fs::remove_file(home.path().join("encrypted").join(slot)).unwrap();
    }
    let error = world.open(&keys(1)).await.unwrap_err();
    assert!(matches!(error, DataError::Damaged { .. }), "never \"blank, so format\": {error:?}");
    let error = world.format(&keys(1)).await.unwrap_err();
    assert!(matches!(error, DataError::WrongKeys { .. }), "{error:?}");
}
