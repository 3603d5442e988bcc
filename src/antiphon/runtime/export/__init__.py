"""What people watch and read of a recording: subtitles, and a film."""
