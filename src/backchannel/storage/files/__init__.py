"""Files beside the database: the state folder, transcripts, media."""
