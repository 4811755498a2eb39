//! Names of files that are written down outside of the declared tree, for those who must not know storage, are those of the tree.

#![forbid(unsafe_code)]

use std::sync::Arc;

use polis_control::{LAST_STATE_FILE, SOCKET_DIRECTORY, SOCKET_NAME};
use polis_storage::Layout;
use polis_storage::simulation::SimulatedDisk;

#[test]
fn the_commands_look_where_the_node_writes() {
    let layout = Layout::new(Arc::new(SimulatedDisk::default()));
    let socket = layout.ephemeral.control_socket.path();
    assert_eq!(socket.as_str(), format!("{SOCKET_DIRECTORY}/{SOCKET_NAME}"));
    assert_eq!(layout.last_state.path().as_str(), LAST_STATE_FILE);
}
