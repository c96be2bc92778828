"""Points of the protocol, each with the tests that fail without it.

The numbers are those of the rules and repairs in ``docs/decisions``; a point that was merged into
another has no test. Each listed test was seen to fail when its point was removed from the code by
hand, one at a time. More tests carry the number of a point than are listed.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

POINTS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        # -- the supervisor --
        "S1": ("test_S1_request_about_an_unknown_node_is_answered_with_unrecorded",),
        "S2": (
            "test_S2_unrecorded_node_that_wants_to_stay_keeps_references_and_subscribes",
            "test_S2_node_that_has_left_answers_a_check_with_unsubscribe",
            "test_S2_leaver_with_permission_drops_everything",
            "test_S2_leaver_answers_a_configuration_with_unsubscribe",
            "test_S2_leaver_sends_unsubscribe_at_every_timeout",
        ),
        "S3": ("test_S3_request_is_answered_from_the_repaired_database",),
        "S4": ("test_S4_lowest_index_of_several_copies_of_a_node_stays",),
        "S5": ("test_S5_label_that_l_never_produces_counts_as_infinity_and_is_moved_first",),
        "S6": (
            "test_S6_any_cursor_is_taken_modulo_n",
            "test_S6_timeout_with_an_empty_roster_sends_nothing",
        ),
        "S7": (
            "test_S7_no_member_is_its_own_neighbour_or_the_neighbour_of_the_leaver_after_a_change",
            "test_S7_last_member_moves_into_the_gap_and_gets_its_new_configuration",
        ),
        "S8": (
            "test_S8_configuration_is_the_own_label_and_the_two_adjacent_labels",
            "test_S8_configuration_sets_the_label",
        ),
        "S9": (
            "test_S9_repair_affects_the_members_whose_configuration_it_changes",
            "test_S9_audit_finds_an_inconsistent_list_when_it_reaches_the_slot",
        ),
        "S10": (
            "test_S10_requests_that_name_no_node_the_supervisor_or_a_suspect_are_ignored",
            "test_S10_message_from_the_suspect_itself_clears_the_suspicion",
            "test_S10_message_without_a_sender_is_dropped",
            "test_S10_suspect_with_a_pending_request_gets_no_answer",
            "test_S10_suspicion_expires_after_64_timeouts",
        ),
        "S11": (
            "test_S11_newcomer_and_its_neighbours_get_their_configurations",
            "test_S11_ring_is_legitimate_two_rounds_after_a_join",
        ),
        # -- the list and the ring --
        "B2": (
            "test_B2_void_neighbours_are_dropped_at_a_timeout",
            "test_B2_configuration_with_void_references_stores_none",
            "test_B2_slot_held_by_the_node_itself_or_the_supervisor_is_emptied",
        ),
        "B3": (
            "test_B3_peer_without_a_label_cannot_be_constructed",
            "test_B3_missing_left_neighbour_is_minus_infinity_and_missing_right_one_plus_infinity",
        ),
        "B4": (
            "test_B4_wrap_edge_that_moves_on_its_side_stays_the_wrap_edge",
            "test_B4_wrap_edge_that_moves_to_the_other_side_goes_to_the_line_only",
        ),
        "B5": (
            "test_B5_nearer_candidate_that_introduces_itself_goes_to_the_line_at_once",
            "test_B5_repeated_introduction_of_the_wrap_edge_changes_nothing",
        ),
        "B6": ("test_B6_wrap_edge_with_an_empty_side_is_linearized_as_well",),
        "B7": (
            "test_B7_node_without_a_label_answers_an_introduction_with_RemoveConnections",
            "test_B7_node_without_a_label_answers_a_check_with_RemoveConnections",
        ),
        "B8": ("test_B8_node_without_a_label_subscribes_and_does_nothing_else",),
        "B9": ("test_B9_forgotten_node_is_removed_from_neighbours_and_shortcuts",),
        "B11": ("test_B11_old_neighbour_beyond_both_new_ones_is_forwarded_instead",),
        "B12": (
            "test_B12_old_neighbour_at_the_same_distance_is_reported_to_the_supervisor",
            "test_B12_old_neighbour_that_the_configuration_names_is_not_reported",
        ),
        "B13": (
            "test_B13_pred_becomes_the_wrap_edge_at_the_left_end",
            "test_B13_references_to_dead_nodes_do_not_stay",
        ),
        "B14": (
            "test_B14_left_neighbour_counts_only_after_its_correction",
            "test_B14_wrap_edge_and_shortcuts_are_not_consulted",
        ),
        # -- shortcuts --
        "C2": (
            "test_C2_chain_crosses_the_wrap_from_1_to_0",
            "test_C2_chains_are_bounded_and_lead_outwards",
        ),
        "C3": ("test_C3_ring_neighbour_and_shortcut_are_introduced_in_the_mixed_case",),
        "C4": ("test_C4_no_node_is_introduced_to_itself_to_us_or_to_an_unknown_holder",),
        "C5": ("test_C5_dropped_holders_are_probed",),
        # -- rules --
        "R1": (
            "test_R1_new_holder_takes_the_slot_and_the_old_one_is_probed",
            "test_R1_introduced_shortcut_without_a_slot_is_probed",
            "test_R1_displaced_shortcut_is_probed",
            "test_R1_stale_shortcuts_heal_without_help_of_the_line",
            "test_R1_alone_ends_the_livelock_of_the_paper",
        ),
        "R2": (
            "test_R2_second_hand_introduction_changes_no_edge",
            "test_R2_second_hand_introductions_do_not_change_neighbours",
            "test_R2_wrong_beliefs_about_neighbours_do_not_spread",
        ),
        "R8": (
            "test_R8_peer_with_our_own_label_is_reported_to_the_supervisor",
            "test_R8_another_node_with_our_label_is_reported_and_not_stored",
        ),
        "R9": (
            "test_R9_configuration_that_confirms_the_neighbour_doubles_the_wait",
            "test_R9_unanswered_request_is_repeated_soon_at_any_back_off",
            "test_R9_configuration_without_a_request_confirms_nothing",
            "test_R9_impossible_tick_counts_are_read_as_zero",
            "test_R9_no_request_is_sent_while_both_neighbours_are_heard",
            "test_R9_second_hand_messages_about_a_neighbour_do_not_count",
            "test_R9_node_that_knows_only_a_dead_neighbour_is_found",
        ),
        "R10": (
            "test_R10_neighbour_that_has_moved_away_causes_a_request_about_both_nodes",
            "test_R10_displaced_node_is_reported_once",
            "test_R10_unsubscribe_costs_few_introductions",
        ),
        "R11": (
            "test_R11_node_that_becomes_unrecorded_reports_all_known_nodes_and_then_subscribes",
            "test_R11_node_without_a_label_reports_no_node",
            "test_R11_lost_database_is_noticed_by_all_in_few_rounds",
        ),
        "R12": (
            "test_R12_stored_label_under_another_id_causes_a_request_about_both_and_no_change",
            "test_R12_replaced_adjacent_members_find_their_places",
        ),
        "R13": (
            "test_R13_wrap_edge_of_a_node_in_the_middle_is_not_forwarded",
            "test_R13_messages_that_arrive_twice_do_not_multiply",
        ),
        "R14": (
            "test_R14_no_alarm_is_raised_before_the_sum_is_stable_after_a_change",
            "test_R14_node_under_two_child_labels_is_counted_once",
            "test_R14_equal_digest_in_between_restarts_the_count",
            "test_R14_weight_depends_on_label_and_node",
            "test_R14_digest_follows_every_change_of_the_roster",
            "test_R14_only_label_0_adds_the_digest_to_its_request",
            "test_R14_digest_of_a_node_other_than_label_0_is_ignored",
            "test_R14_two_swapped_members_are_found_before_round_robin_reaches_them",
        ),
        "R15": (
            "test_R15_members_and_strangers_do_not_wait_for_each_other",
            "test_R15_recently_informed_members_are_answered_last_for_eight_timeouts",
            "test_R15_budget_of_members_is_64_or_an_eighth_of_all_known_nodes",
            "test_R15_lost_database_does_not_flood_the_network_with_configurations",
        ),
        # -- repair over shortcuts, rumours --
        "R16": (
            "test_R16_repair_over_shortcuts_takes_few_rounds",
            "test_R16_tries_are_compared_over_shortcuts_too",
        ),
        "R17": ("test_R17_announced_repairs_are_faster_than_repairs",),
        "k+1": (
            "test_k_plus_1_is_the_exponent_of_the_machine_and_k_without_the_rule",
            "test_k_plus_1_is_the_exponent_with_which_a_label_of_length_k_asks",
            "test_k_plus_1_keeps_requests_to_the_supervisor_below_one_per_round",
        ),
        # -- publications --
        "T1": (
            "test_T1_deep_difference_changes_the_root_although_all_labels_above_are_equal",
            "test_T1_request_contains_the_digest_over_the_digests_of_both_children",
            "test_T1_id_equal_to_the_digests_of_two_others_is_not_mistaken_for_them",
        ),
        "T2": (
            "test_T2_member_with_an_empty_trie_asks_and_receives_everything",
            "test_T2_virtual_root_of_another_mode_is_not_answered",
            "test_T2_two_empty_tries_are_not_answered",
        ),
        "T3": (
            "test_T3_all_missing_publications_beside_a_deeper_node_are_sent",
            "test_T3_all_missing_publications_beside_a_deeper_node_are_sent_at_once",
            "test_T3_publications_that_the_requester_holds_are_not_sent",
        ),
        "T4": (
            "test_T4_all_240_pairs_of_sets_over_two_bits_become_equal_in_one_session",
            "test_T4_alone_makes_every_pair_equal_and_T3_helps_some_without_it",
            "test_T4_empty_summary_requests_everything_under_its_prefix",
            "test_T4_one_session_makes_both_equal_whichever_side_asks",
            "test_T4_receiver_of_a_summary_sends_the_publications_missing_under_its_prefix",
            "test_T4_list_hides_a_difference_permanently_without_the_rule",
        ),
        "T6": (
            "test_T6_leaves_are_sent_without_digests",
            "test_T6_empty_answer_is_not_sent",
        ),
        "T8": (
            "test_T8_session_ends_when_the_requested_publications_have_arrived",
            "test_T8_open_session_ends_after_session_ticks_without_an_answer",
            "test_T8_publications_that_arrive_with_a_request_do_not_end_the_session",
            "test_T8_session_of_another_member_does_not_delay_the_next_request",
            "test_T8_party_with_an_open_session_asks_no_other",
        ),
        "T9": (
            "test_T9_forged_root_causes_no_more_messages_than_the_tries_have_nodes",
            "test_T9_message_with_a_prefix_longer_than_an_id_is_refused",
            "test_T9_reply_strictly_extends_a_prefix_of_the_request",
            "test_T9_prefixes_longer_than_an_id_are_refused",
            "test_T9_wrong_digest_of_one_leaf_is_not_answered",
        ),
        "T10": (
            "test_T10_stale_digest_is_recomputed_and_no_longer_hides_a_difference",
            "test_T10_wrong_digest_is_found_and_corrected",
            "test_T10_scrub_reaches_every_digest_of_a_large_trie_in_slices",
        ),
        "T11": (
            "test_T11_wrong_id_does_not_keep_out_the_publication_it_belongs_to",
            "test_T11_publication_with_a_wrong_id_is_stored_under_the_id_of_its_fields",
        ),
        "T12": (
            "test_T12_corrupt_row_is_never_sent",
            "test_T12_corrupt_row_is_quarantined_and_fetched_again",
        ),
        "T14": (
            "test_T14_message_beyond_the_largest_valid_size_is_not_answered",
            "test_T14_newcomer_receives_all_3000_publications",
            "test_T14_each_partner_has_its_own_credit_in_each_tick",
            "test_T14_publication_larger_than_a_chunk_is_sent_alone",
            "test_T14_answer_is_split_into_a_bounded_number_of_chunks",
            "test_T14_rest_is_fetched_in_the_same_session_within_the_credit",
            "test_T14_summaries_of_a_large_difference_are_split_into_several_messages",
            "test_T14_request_beyond_the_credit_is_not_answered",
        ),
        "T16": (
            "test_T16_neighbour_on_both_sides_is_asked_to_confirm_once",
            "test_T16_node_itself_and_the_supervisor_are_no_partners",
            "test_T16_member_alone_in_its_ring_sends_no_request",
            "test_T16_peer_with_two_edges_is_asked_as_often_as_a_peer_with_one",
            "test_T16_member_without_partners_sends_nothing",
        ),
        "T18": (
            "test_T18_any_difference_resets_the_period",
            "test_T18_request_is_sent_in_every_tick_by_default",
            "test_T18_period_doubles_up_to_64_ticks_without_a_difference",
            "test_T18_equal_roots_and_known_publications_do_not_reset_the_period",
        ),
        "T19": (
            "test_T19_true_summary_of_a_part_confirms_nothing",
            "test_T19_confirmation_counts_only_while_the_root_is_unchanged",
            "test_T19_equal_tries_do_not_answer_an_ordinary_request",
            "test_T19_different_tries_are_not_confirmed",
            "test_T19_equal_tries_are_confirmed",
        ),
        "batch": (
            "test_batch_hundred_differences_take_few_messages",
            "test_batch_session_over_4096_ids_needs_few_messages",
            "test_batch_all_open_prefixes_go_into_one_message",
            "test_batch_answer_descends_several_levels",
            "test_batch_few_ids_are_listed_at_once",
        ),
    }
)
